-- +goose Up

-- The audit log can be filtered by the address that requests came from: the rows of each of its origins, newest first.
CREATE INDEX origins_address ON origins (address);
CREATE INDEX calls_origin ON calls (origin_id, id DESC) WHERE origin_id IS NOT NULL;
CREATE INDEX audit_entries_origin ON audit_entries (origin_id, id DESC) WHERE origin_id IS NOT NULL;
