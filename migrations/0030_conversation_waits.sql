-- +goose Up

-- Lists of conversations by voice server and by how they ended.
CREATE INDEX conversations_upstream ON conversations (upstream, id DESC);
CREATE INDEX conversations_ended ON conversations (ended, id DESC) WHERE end_at IS NOT NULL;

-- A fan-out whose calls do not wait for the end of a conversation.
ALTER TABLE fanouts ADD COLUMN interrupt boolean NOT NULL DEFAULT false;
