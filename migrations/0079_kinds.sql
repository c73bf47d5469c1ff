-- +goose Up

-- Everything with tools is a row of devices: boards, plug-ins that fleetd runs, programs that
-- dial in. The ids of the latter two begin with their kind; no board can have such an id.
ALTER TABLE devices
    ADD COLUMN kind text COLLATE "C" NOT NULL DEFAULT 'esp32'
        CHECK (kind IN ('esp32', 'mqtt5', 'plugin', 'endpoint')),
    ADD CONSTRAINT kind_of_id CHECK ((kind = 'plugin') = (id LIKE 'plugin.%') AND (kind = 'endpoint') = (id LIKE 'endpoint.%'))
        NOT VALID;
