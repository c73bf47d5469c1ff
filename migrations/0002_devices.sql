-- +goose Up

-- Tool inventories, stored once by content.
CREATE TABLE inventories (
    id         text COLLATE "C" PRIMARY KEY CHECK (id <> ''),
    tools      jsonb NOT NULL CHECK (jsonb_typeof(tools) = 'array'),
    tool_names text[] NOT NULL,
    created_at timestamptz NOT NULL
);

-- Presence and last_seen change often: they are in no index, and pages keep
-- room, so that such an update touches one page of the heap (HOT).
--
-- Most questions to a list are answered by reading the whole table. PostgreSQL
-- takes a row apart from the left, so what lists filter and sort by comes
-- first, of that what has a fixed width and is never null.
CREATE TABLE devices (
    created_at     timestamptz NOT NULL,
    presence_since timestamptz NOT NULL,
    serial         integer NOT NULL DEFAULT 0,
    tools_count    integer NOT NULL DEFAULT 0,
    in_service     boolean NOT NULL GENERATED ALWAYS AS (retired_at IS NULL) STORED,
    presence       text COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (presence IN ('pending', 'online', 'unresponsive', 'offline')),
    last_seen      timestamptz,
    id             text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[a-z0-9._-]{1,64}$'),
    name_key       text COLLATE "C" NOT NULL DEFAULT '',
    title_key      text COLLATE "C" NOT NULL GENERATED ALWAYS AS (CASE WHEN name_key = '' THEN id ELSE name_key END) STORED,
    board_key      text COLLATE "C" NOT NULL DEFAULT '',
    tags_key       text COLLATE "C" NOT NULL DEFAULT '',
    version_key    bigint[],
    version        text COLLATE "C" NOT NULL DEFAULT '',
    inventory_id   text COLLATE "C" REFERENCES inventories (id),
    hold_since     timestamptz,
    hold_until     timestamptz,
    chip           text COLLATE "C" NOT NULL DEFAULT '',
    enrolment      text COLLATE "C" NOT NULL DEFAULT 'waiting' CHECK (enrolment IN ('waiting', 'enrolled', 'rejected')),
    slot           text COLLATE "C" NOT NULL DEFAULT '',
    transport      text COLLATE "C" NOT NULL DEFAULT '',
    elf_sha256     text COLLATE "C" NOT NULL DEFAULT '',

    name       text NOT NULL DEFAULT '',
    notes      text NOT NULL DEFAULT '',
    tags       text[] NOT NULL DEFAULT '{}',
    board      text NOT NULL DEFAULT '',
    board_type text NOT NULL DEFAULT '',
    language   text NOT NULL DEFAULT '',

    presence_evidence text NOT NULL DEFAULT '',
    last_poll         timestamptz,
    remote_addr       text NOT NULL DEFAULT '',

    enrolled_at   timestamptz,
    client_id     text NOT NULL DEFAULT '',
    new_client_id text NOT NULL DEFAULT '',
    claim_code    text NOT NULL DEFAULT '',
    challenge     text NOT NULL DEFAULT '',

    hold_reason  text,
    hold_kind    text,
    hold_id      text,
    hold_name    text,
    hold_role    text,

    inventory_elf text NOT NULL DEFAULT '',
    inventory_at  timestamptz,

    retired_at  timestamptz,
    replaced_by text COLLATE "C" REFERENCES devices (id),

    CONSTRAINT hold_is_whole CHECK (num_nulls(hold_reason, hold_kind, hold_id, hold_name, hold_role, hold_since) IN (0, 6)
        AND (hold_until IS NULL OR hold_since IS NOT NULL)),
    CONSTRAINT replaced_is_retired CHECK (replaced_by IS NULL OR retired_at IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX devices_title ON devices (title_key, id);
CREATE INDEX devices_inventory ON devices (inventory_id);

-- The latest boot poll, as the device wrote it: json keeps the spelling, and
-- takes \u0000, which jsonb does not.
CREATE TABLE device_facts (
    device_id     text COLLATE "C" PRIMARY KEY REFERENCES devices (id),
    polled_at     timestamptz NOT NULL,
    body          json,
    broken        boolean NOT NULL DEFAULT false,
    serial_number text NOT NULL DEFAULT '',
    user_agent    text NOT NULL DEFAULT '',
    body_mac      text NOT NULL DEFAULT ''
) WITH (fillfactor = 70);

-- Who holds a device's connection. A row outlives the connection: its epoch
-- keeps older ones out. It may come before the device's own row.
CREATE TABLE connections (
    device_id   text COLLATE "C" PRIMARY KEY,
    node        text NOT NULL,
    epoch       bigint NOT NULL,
    client_id   text NOT NULL DEFAULT '',
    transport   text NOT NULL DEFAULT '',
    remote_addr text NOT NULL DEFAULT '',
    at          timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Firmware history; at most one row of a device is the current one.
CREATE TABLE device_firmware (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device_id   text COLLATE "C" NOT NULL REFERENCES devices (id),
    version     text NOT NULL,
    slot        text NOT NULL,
    elf_sha256  text NOT NULL,
    idf_version text NOT NULL,
    first_seen  timestamptz NOT NULL,
    last_seen   timestamptz NOT NULL,
    current     boolean NOT NULL
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX device_firmware_current ON device_firmware (device_id) WHERE current;
CREATE INDEX device_firmware_history ON device_firmware (device_id, id DESC);

-- Which device offered which tools, from when to when.
CREATE TABLE device_inventories (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device_id      text COLLATE "C" NOT NULL REFERENCES devices (id),
    inventory_id   text COLLATE "C" NOT NULL REFERENCES inventories (id),
    version        text NOT NULL,
    elf_sha256     text NOT NULL,
    server_name    text NOT NULL,
    server_version text NOT NULL,
    tools_count    integer NOT NULL,
    partial        boolean NOT NULL,
    first_seen     timestamptz NOT NULL,
    last_seen      timestamptz NOT NULL,
    current        boolean NOT NULL
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX device_inventories_current ON device_inventories (device_id) WHERE current;
CREATE INDEX device_inventories_history ON device_inventories (device_id, id DESC);

CREATE TABLE presence_samples (
    at           timestamptz PRIMARY KEY,
    online       integer NOT NULL,
    unresponsive integer NOT NULL,
    offline      integer NOT NULL,
    pending      integer NOT NULL
);
