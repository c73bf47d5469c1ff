-- +goose Up

-- The latest checkpoint that each witness signed (package fleet/publish): the text with the signatures of the log and
-- of the witness. witness is its public key.
CREATE TABLE record_cosignatures (
    witness     text PRIMARY KEY,
    size        bigint NOT NULL CHECK (size > 0),
    note        text NOT NULL,
    cosigned_at timestamptz NOT NULL
);
