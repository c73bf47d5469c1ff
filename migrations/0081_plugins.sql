-- +goose Up

-- Plug-ins made through the console or REST. Those of the plug-in directory have no row.
CREATE TABLE plugins (
    name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,39}$'),
    manifest   jsonb NOT NULL,
    env        bytea, -- sealed
    version    bigint NOT NULL,
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL
);
