-- +goose Up

-- Conversations of devices with voice servers: their circumstances, no audio and
-- no words. Version 7 ids: their order is the order of time. A row without an end
-- is open.
CREATE TABLE conversations (
    id         uuid PRIMARY KEY,
    device_id  text COLLATE "C" NOT NULL CHECK (device_id <> ''),
    upstream   text NOT NULL,
    created_at   timestamptz NOT NULL,
    end_at     timestamptz,
    ended      text NOT NULL DEFAULT '',
    calls      bigint NOT NULL CHECK (calls >= 0),
    hello_us   bigint NOT NULL CHECK (hello_us >= 0),
    received   bigint NOT NULL CHECK (received >= 0),
    lost       bigint NOT NULL CHECK (lost >= 0),
    refused    bigint NOT NULL CHECK (refused >= 0),
    dropped    bigint NOT NULL CHECK (dropped >= 0),
    sent       bigint NOT NULL CHECK (sent >= 0),
    moves      bigint NOT NULL CHECK (moves >= 0),
    jitter_us  bigint NOT NULL CHECK (jitter_us >= 0),
    CONSTRAINT end_has_code CHECK ((end_at IS NULL) = (ended = ''))
);
CREATE INDEX conversations_device ON conversations (device_id, id DESC);
CREATE INDEX conversations_created ON conversations (created_at);
CREATE INDEX conversations_open ON conversations (id) WHERE end_at IS NULL;
