-- +goose Up

-- Where requests came from. A row is stored once: its id is a hash of its content.
CREATE TABLE origins (
    id        uuid PRIMARY KEY,
    address   text NOT NULL,
    client    text NOT NULL,
    last_seen timestamptz NOT NULL -- to a day
);

ALTER TABLE calls ADD COLUMN origin_id uuid, ADD COLUMN trace_id uuid;
ALTER TABLE audit_entries ADD COLUMN origin_id uuid, ADD COLUMN trace_id uuid;

CREATE INDEX calls_trace ON calls (trace_id) WHERE trace_id IS NOT NULL;
CREATE INDEX audit_entries_trace ON audit_entries (trace_id) WHERE trace_id IS NOT NULL;
