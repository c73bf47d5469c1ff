-- +goose Up

-- How a tool is to be described: language models call it on no device that
-- describes it otherwise. digest is the SHA-256 of its description and schema.
CREATE TABLE tool_pins (
    tool      text COLLATE "C" PRIMARY KEY CHECK (tool <> ''),
    digest    bytea NOT NULL CHECK (octet_length(digest) = 32),
    pinned_by text NOT NULL,
    pinned_at timestamptz NOT NULL
);
