-- +goose Up

-- When devices restarted, for a day: they poll at each boot. Alerts count them.
CREATE TABLE device_boots (
    device_id text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL
);
CREATE INDEX device_boots_at ON device_boots (at, device_id);
