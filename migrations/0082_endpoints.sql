-- +goose Up

-- Programs that connect to fleetd by WebSocket as MCP servers. Of tokens only hashes are stored.
CREATE TABLE endpoints (
    name               text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,39}$'),
    settings           jsonb NOT NULL,
    provider_hash      bytea UNIQUE CHECK (octet_length(provider_hash) = 32), -- null: no token
    provider_hint      text NOT NULL,
    provider_issued_by text NOT NULL,
    provider_issued_at timestamptz,
    consumer_hash      bytea UNIQUE CHECK (octet_length(consumer_hash) = 32),
    consumer_hint      text NOT NULL,
    consumer_issued_by text NOT NULL,
    consumer_issued_at timestamptz,
    version            bigint NOT NULL,
    created_at         timestamptz NOT NULL,
    updated_by         text NOT NULL,
    updated_at         timestamptz NOT NULL
);
