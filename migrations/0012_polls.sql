-- +goose Up

-- What a boot poll said before its body broke, as codes.
ALTER TABLE device_facts ADD COLUMN salvaged text[] NOT NULL DEFAULT '{}';
