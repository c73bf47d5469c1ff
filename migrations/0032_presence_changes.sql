-- +goose Up

-- When each device could be reached and when not, and what that was concluded
-- from. The time is that of devices.presence_since: a change that is stored twice
-- is there once. Rows come in the order of time, so that a range index leads to
-- the oldest at hardly any cost for those who write.
CREATE TABLE presence_changes (
    device_id       text COLLATE "C" NOT NULL,
    at              timestamptz NOT NULL,
    presence        text COLLATE "C" NOT NULL CHECK (presence IN ('pending', 'online', 'unresponsive', 'offline')),
    evidence_code   text COLLATE "C" NOT NULL,
    evidence_params jsonb,
    transport       text COLLATE "C" NOT NULL,
    PRIMARY KEY (device_id, at)
);
CREATE INDEX presence_changes_at ON presence_changes USING brin (at) WITH (pages_per_range = 32);

-- What changed from one report of a device to the next: it restarted, or runs
-- with another configuration.
CREATE TABLE report_changes (
    device_id text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    code      text COLLATE "C" NOT NULL CHECK (code IN ('restarted', 'configured')),
    params    jsonb NOT NULL,
    PRIMARY KEY (device_id, at, code)
);
CREATE INDEX report_changes_at ON report_changes USING brin (at) WITH (pages_per_range = 32);

-- timeline_key orders what has a time and no version 7 id among what has one: it
-- is such an id, of that millisecond. n keeps apart what came in the same one.
CREATE FUNCTION timeline_key(at timestamptz, source integer, n bigint) RETURNS uuid
LANGUAGE sql STABLE AS $$
    SELECT (lpad(to_hex(greatest(floor(extract(epoch FROM at) * 1000), 0)::bigint), 12, '0') || '70'
        || lpad(to_hex(source), 2, '0') || '8000' || lpad(to_hex(n & 281474976710655), 12, '0'))::uuid
$$;
