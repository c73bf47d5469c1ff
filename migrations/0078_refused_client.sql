-- +goose Up

-- The Client-Id that an operator refused for the device, as the unit that was not kept:
-- it stays refused after a restart.
ALTER TABLE devices ADD COLUMN refused_client_id text NOT NULL DEFAULT '';
