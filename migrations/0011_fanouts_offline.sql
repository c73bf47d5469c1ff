-- +goose Up

-- How long, from its creation, a fan-out waits for devices that are not
-- connected; 0: their calls end as offline at once.
ALTER TABLE fanouts ADD COLUMN offline_wait_ms bigint NOT NULL DEFAULT 0
    CONSTRAINT offline_wait_bounded CHECK (offline_wait_ms BETWEEN 0 AND 86400000);
