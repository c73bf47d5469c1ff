-- +goose Up

-- What is approved may interrupt conversations of its devices: who approves is
-- shown that, and the digest covers it.
ALTER TABLE approvals ADD COLUMN interrupt boolean NOT NULL DEFAULT false;
