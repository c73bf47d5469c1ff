-- +goose Up

-- What the catalogue of tools knows as a whole: one row. version grows with each change of a
-- definition's state, so that every process follows it. waits says which definitions language models
-- may not call until a person releases them.
CREATE TABLE tool_catalogue (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL DEFAULT 1,
    waits   text NOT NULL DEFAULT 'off' CHECK (waits IN ('off', 'new', 'new_and_changed'))
);
INSERT INTO tool_catalogue DEFAULT VALUES;

-- The definitions of tools that devices have listed: each description and schema of a name, once.
-- audience is 'model' as soon as one device lists the definition for models. waiting is set while a
-- person has yet to release it. device_id is the device that listed it first.
CREATE TABLE tool_definitions (
    tool         text COLLATE "C" NOT NULL CHECK (tool <> ''),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    description  text NOT NULL,
    input_schema jsonb NOT NULL,
    audience     text NOT NULL CHECK (audience IN ('model', 'user')),
    waiting      text CHECK (waiting IN ('new', 'changed')),
    device_id    text COLLATE "C" NOT NULL,
    first_seen   timestamptz NOT NULL,
    released_by  text NOT NULL DEFAULT '',
    released_at  timestamptz,
    PRIMARY KEY (tool, digest),
    CONSTRAINT waits_for_models_only CHECK (waiting IS NULL OR audience = 'model')
);
CREATE INDEX tool_definitions_waiting ON tool_definitions (tool) WHERE waiting IS NOT NULL;
CREATE INDEX tool_definitions_device ON tool_definitions (device_id);

-- Which definitions an inventory lists, and where it was listed. An inventory of before this migration,
-- or one that an earlier version of fleetd stores, is read when a process of this version starts.
CREATE TABLE inventory_tools (
    tool         text COLLATE "C" NOT NULL,
    digest       bytea NOT NULL,
    inventory_id text COLLATE "C" NOT NULL REFERENCES inventories (id),
    audience     text NOT NULL,
    PRIMARY KEY (tool, digest, inventory_id)
);
CREATE TABLE inventory_places (
    inventory_id text COLLATE "C" NOT NULL REFERENCES inventories (id),
    board        text COLLATE "C" NOT NULL,
    version      text COLLATE "C" NOT NULL,
    first_seen   timestamptz NOT NULL,
    PRIMARY KEY (inventory_id, board, version)
);
ALTER TABLE inventories ADD COLUMN catalogued boolean NOT NULL DEFAULT false;
ALTER TABLE inventories ADD COLUMN last_seen timestamptz;
CREATE INDEX inventories_uncatalogued ON inventories (id) WHERE NOT catalogued;

-- The places of before: where devices list their inventories now.
INSERT INTO inventory_places
    SELECT inventory_id, board, version, min(coalesce(inventory_at, created_at)) FROM devices
    WHERE inventory_id IS NOT NULL GROUP BY 1, 2, 3;

-- Which firmware a device ran since when: a call has no version. A trigger sees every way in which the
-- version changes. The calls of before count for the version of the time of this migration.
CREATE TABLE device_versions (
    device_id text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    version   text COLLATE "C" NOT NULL,
    PRIMARY KEY (device_id, at)
);
INSERT INTO device_versions SELECT id, created_at, version FROM devices WHERE version <> '';
-- +goose StatementBegin
CREATE FUNCTION note_device_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO device_versions VALUES (NEW.id, clock_timestamp(), NEW.version) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER device_version_changed AFTER UPDATE OF version ON devices
    FOR EACH ROW WHEN (OLD.version IS DISTINCT FROM NEW.version) EXECUTE FUNCTION note_device_version();
CREATE TRIGGER device_version_first AFTER INSERT ON devices
    FOR EACH ROW WHEN (NEW.version <> '') EXECUTE FUNCTION note_device_version();

-- What each device in service offers: the inventory, and the board and version that it is on. Pages count
-- devices here. A row of devices is ten times as wide, and changes with each sign of life.
CREATE TABLE device_offers (
    device_id    text COLLATE "C" PRIMARY KEY,
    inventory_id text COLLATE "C" NOT NULL,
    board        text COLLATE "C" NOT NULL,
    version      text COLLATE "C" NOT NULL
);
INSERT INTO device_offers SELECT id, inventory_id, board, version FROM devices WHERE in_service AND inventory_id IS NOT NULL;
-- +goose StatementBegin
CREATE FUNCTION note_device_offer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.in_service AND NEW.inventory_id IS NOT NULL THEN
        INSERT INTO device_offers VALUES (NEW.id, NEW.inventory_id, NEW.board, NEW.version)
        ON CONFLICT (device_id) DO UPDATE SET inventory_id = NEW.inventory_id, board = NEW.board, version = NEW.version;
    ELSE
        DELETE FROM device_offers WHERE device_id = OLD.id;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER device_offer_changed AFTER UPDATE OF inventory_id, board, version, retired_at ON devices
    FOR EACH ROW WHEN ((OLD.in_service, OLD.inventory_id, OLD.board, OLD.version)
        IS DISTINCT FROM (NEW.in_service, NEW.inventory_id, NEW.board, NEW.version)) EXECUTE FUNCTION note_device_offer();
CREATE TRIGGER device_offer_first AFTER INSERT ON devices
    FOR EACH ROW WHEN (NEW.inventory_id IS NOT NULL AND NEW.in_service) EXECUTE FUNCTION note_device_offer();
CREATE TRIGGER device_offer_last AFTER DELETE ON devices
    FOR EACH ROW WHEN (OLD.inventory_id IS NOT NULL) EXECUTE FUNCTION note_device_offer();

-- How often each tool was called in an hour, by the firmware that its devices ran, with what outcome,
-- and how long answers took. The hour is that of the request. Bucket i of the histogram holds answers of
-- 2^(i/8) up to 2^((i+1)/8) milliseconds; buckets and counts are parallel and have no empty buckets.
--
-- The unit of counting is an hour: its rows are replaced together, from the records of its calls, until
-- no call of it can change any more. An interrupted run therefore neither loses a call nor counts one
-- twice.
CREATE TABLE tool_usage (
    hour        timestamptz NOT NULL,
    tool        text COLLATE "C" NOT NULL,
    version     text COLLATE "C" NOT NULL,
    succeeded   bigint NOT NULL,
    tool_errors bigint NOT NULL,
    timed_out   bigint NOT NULL,
    unknown     bigint NOT NULL,
    not_sent    bigint NOT NULL,
    buckets     smallint[] NOT NULL,
    counts      bigint[] NOT NULL,
    PRIMARY KEY (tool, hour, version)
);
CREATE INDEX tool_usage_hour ON tool_usage (hour);

-- The same by days of UTC, which pages read. A day is added up again with each of its hours; when all
-- of them are done, their rows are deleted.
CREATE TABLE tool_usage_days (LIKE tool_usage INCLUDING CONSTRAINTS);
ALTER TABLE tool_usage_days RENAME COLUMN hour TO day;
ALTER TABLE tool_usage_days ADD PRIMARY KEY (tool, day, version);
CREATE INDEX tool_usage_days_day ON tool_usage_days (day);

-- How far the counting of each hour is: due, until its calls are final; settled, until it is counted a
-- last time, a day later; done.
CREATE TABLE tool_usage_hours (
    hour  timestamptz PRIMARY KEY,
    state text NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'settled', 'done')),
    calls bigint NOT NULL DEFAULT 0
);
CREATE INDEX tool_usage_hours_open ON tool_usage_hours (hour) WHERE state <> 'done';
