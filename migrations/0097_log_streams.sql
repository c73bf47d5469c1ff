-- +goose Up

-- Receivers of the sealed record. next_entry is the number of the first entry that the receiver has not confirmed.
-- address and secrets are sealed; shown is what pages show of the address. revision counts the changes by people and
-- programs: a process with an older one no longer sends.
CREATE TABLE log_streams (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('webhook', 'syslog', 'otlp')),
    shown      text NOT NULL,
    address    bytea NOT NULL,
    secrets    bytea NOT NULL,
    ca         text NOT NULL,
    filter     jsonb NOT NULL,
    batch      integer NOT NULL CHECK (batch > 0),
    enabled    boolean NOT NULL,
    revision   bigint NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    next_entry bigint NOT NULL CHECK (next_entry >= 0),
    failures   integer NOT NULL DEFAULT 0
);

-- The latest requests to each receiver: one row for what was sent within a second, and one for each failure.
CREATE TABLE log_stream_deliveries (
    stream_id   uuid NOT NULL REFERENCES log_streams ON DELETE CASCADE,
    id          bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL,
    first_entry bigint NOT NULL,
    last_entry  bigint NOT NULL,
    entries     integer NOT NULL,
    requests    integer NOT NULL,
    removed     integer NOT NULL,
    took_ms     bigint NOT NULL,
    status      integer NOT NULL,
    code        text NOT NULL,
    params      jsonb,
    PRIMARY KEY (stream_id, id)
);
