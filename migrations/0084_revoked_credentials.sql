-- +goose Up

-- Set while a device of MCP over MQTT has no valid credentials: it cannot use a certificate either.
ALTER TABLE devices ADD COLUMN credentials_revoked boolean NOT NULL DEFAULT false;
