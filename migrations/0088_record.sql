-- +goose Up

-- The sealed record (package fleet/record): a Merkle log over rows of other tables.

-- Leaves of entries that were stored since the last checkpoint. Each transaction that stores entries adds one row;
-- the leader removes the rows when it appends their leaves. Ids are not in the order of commits.
CREATE TABLE record_queue (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    leaves    bytea NOT NULL CHECK (octet_length(leaves) > 0)
);

-- Consecutive entries of the log: their keys (kind, key of the row, time), and the hashes of their lines. span
-- contains the times of the entries. Hashes cannot be compressed.
CREATE TABLE record_batches (
    first   bigint PRIMARY KEY CHECK (first >= 0),
    entries integer NOT NULL CHECK (entries > 0),
    keys    bytea NOT NULL,
    hashes  bytea NOT NULL,
    span    tstzrange NOT NULL,
    CONSTRAINT a_hash_each CHECK (octet_length(hashes) = 32 * entries)
);
ALTER TABLE record_batches ALTER COLUMN hashes SET STORAGE EXTERNAL;
CREATE INDEX record_batches_span ON record_batches USING gist (span);

-- Full tiles of 256 hashes. Partial tiles follow from the batches and the tiles below them.
CREATE TABLE record_tiles (
    level  smallint NOT NULL CHECK (level >= 0),
    n      bigint NOT NULL CHECK (n >= 0),
    hashes bytea NOT NULL CHECK (octet_length(hashes) = 8192),
    PRIMARY KEY (level, n)
);
ALTER TABLE record_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL;

-- Signed states of the log. note is the signed text.
CREATE TABLE record_checkpoints (
    size bigint PRIMARY KEY CHECK (size > 0),
    root bytea NOT NULL CHECK (octet_length(root) = 32),
    at   timestamptz NOT NULL,
    term integer NOT NULL,
    note text NOT NULL
);

-- Public keys of the log. All have the same name. from_size is the size of the log when the key was added.
CREATE TABLE record_keys (
    id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    verifier  text NOT NULL UNIQUE,
    from_size bigint NOT NULL,
    added_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- When the record began: older rows are not sealed.
CREATE TABLE record_start (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at  timestamptz NOT NULL
);
INSERT INTO record_start (at) VALUES (clock_timestamp());

-- Rows that fleetd removed: those of a device that was never enrolled, and those of a table before a time. Each is
-- an entry of the log, too.
CREATE TABLE record_removals (
    kind smallint NOT NULL,
    ref  bytea NOT NULL,
    at   timestamptz NOT NULL,
    PRIMARY KEY (kind, ref, at)
);

-- record_leaf makes the stored form of a leaf, as record.Leaf.Append does.
CREATE FUNCTION record_leaf(kind integer, ref bytea, at timestamptz, line text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT set_byte('\x00', 0, kind) || set_byte('\x00', 0, octet_length(ref)) || ref
        || int8send((extract(epoch FROM at) * 1000000)::bigint) || sha256('\x00'::bytea || convert_to(line, 'UTF8'))
$$;

CREATE FUNCTION record_time(at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- Lines of entries whose rows are made in SQL. A line of another form is another kind of entry, and another function:
-- these stay as they are.
CREATE FUNCTION record_connection(device_id text, at timestamptz, presence text, evidence text, params jsonb,
    transport text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('entry', 'connection', 'device_id', device_id, 'at', record_time(at), 'presence', presence,
        'evidence', evidence, 'params', params, 'transport', transport)::text
$$;

CREATE FUNCTION record_step(deployment_id uuid, id uuid, at timestamptz, attempt integer, kind text, from_state text,
    to_state text, reason text, params jsonb) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('entry', 'campaign_step', 'deployment_id', deployment_id, 'id', id, 'at', record_time(at),
        'attempt', attempt, 'kind', kind, 'from', from_state, 'to', to_state, 'reason', reason, 'params', params)::text
$$;

CREATE FUNCTION record_firmware(id bigint, device_id text, version text, first_seen timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('entry', 'firmware', 'id', id, 'device_id', device_id, 'version', version,
        'first_seen', record_time(first_seen))::text
$$;
