-- +goose Up

-- Serial numbers and the HMAC keys burnt into the fuses of the devices that
-- carry them. A key is sealed with the server's secret: a copy of the database
-- alone proves nothing. device_id is the first device that proved to hold the
-- key. It has no foreign key: a device that waits can be forgotten, the proof
-- cannot.
CREATE TABLE serial_keys (
    serial          text COLLATE "C" PRIMARY KEY CHECK (serial ~ '^[A-Za-z0-9._-]{1,64}$'),
    sealed_key      bytea NOT NULL CHECK (octet_length(sealed_key) BETWEEN 29 AND 200),
    loaded_at       timestamptz NOT NULL,
    loaded_by       text NOT NULL,
    device_id       text COLLATE "C" NOT NULL DEFAULT '',
    bound_at        timestamptz,
    wrong_proofs    bigint NOT NULL DEFAULT 0,
    wrong_at        timestamptz,
    conflict_device text COLLATE "C" NOT NULL DEFAULT '',
    conflict_at     timestamptz,
    CONSTRAINT bound_is_whole CHECK ((device_id = '') = (bound_at IS NULL)),
    CONSTRAINT conflict_is_whole CHECK ((conflict_device = '') = (conflict_at IS NULL)),
    CONSTRAINT conflict_is_with_another CHECK (conflict_device = '' OR (device_id <> '' AND conflict_device <> device_id))
);

-- Generations of the key that signs the credentials of devices, sealed with the
-- server's secret. Generation 0 is derived from the secret and has no row. A
-- generation that is refused for good loses its row.
CREATE TABLE signing_keys (
    generation integer PRIMARY KEY CHECK (generation > 0),
    sealed_key bytea NOT NULL CHECK (octet_length(sealed_key) BETWEEN 29 AND 200),
    created_at timestamptz NOT NULL
);

-- From one generation to the next. The latest row says which generation signs,
-- and which are accepted.
CREATE TABLE key_rotations (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    from_generation integer NOT NULL CHECK (from_generation >= 0),
    to_generation   integer NOT NULL UNIQUE,
    state           text NOT NULL CHECK (state IN ('running', 'aborting', 'finished', 'aborted')),
    started_at      timestamptz NOT NULL,
    started_by      text NOT NULL,
    ended_at        timestamptz,
    ended_by        text NOT NULL DEFAULT '',
    left_behind     bigint NOT NULL DEFAULT 0 CHECK (left_behind >= 0),
    CONSTRAINT goes_forward CHECK (to_generation > from_generation),
    CONSTRAINT end_is_whole CHECK ((ended_at IS NULL) = (state IN ('running', 'aborting')))
);
CREATE UNIQUE INDEX key_rotations_open ON key_rotations ((true)) WHERE ended_at IS NULL;

-- With which generation a device last connected since the rotation began.
CREATE TABLE rotation_devices (
    rotation   integer NOT NULL REFERENCES key_rotations (id) ON DELETE CASCADE,
    device_id  text COLLATE "C" NOT NULL,
    generation integer NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (rotation, device_id)
);
