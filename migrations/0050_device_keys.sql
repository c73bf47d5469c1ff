-- +goose Up

-- The Ed25519 public key that the included firmware makes at its first boot, in base64.
-- A device with one gets credentials only for a poll that proves it.
ALTER TABLE devices ADD COLUMN device_key text NOT NULL DEFAULT '';
