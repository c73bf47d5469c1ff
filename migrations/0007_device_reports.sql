-- +goose Up

-- What devices with the included firmware report. A row may come before the
-- device's own: a device connects as soon as it is known in memory.

CREATE TABLE device_vitals (
    device_id text COLLATE "C" PRIMARY KEY,
    at        timestamptz NOT NULL,
    safe_mode boolean NOT NULL,
    core_dump boolean NOT NULL,
    vitals    json NOT NULL
) WITH (fillfactor = 50);

-- Both are few and seldom change: a heartbeat stays an update in place.
CREATE INDEX device_vitals_safe_mode ON device_vitals (device_id) WHERE safe_mode;
CREATE INDEX device_vitals_core_dump ON device_vitals (device_id) WHERE core_dump;

-- The history of vitals, in steps of five minutes. Every device adds a row per
-- step: they lie in the order of time, so that a whole fleet writes into a few
-- pages and not into a page per device; who reads one device's history names
-- each step. One partition per day (UTC): a day goes at once. The order of the
-- columns leaves no padding, and half of each page stays free: a step is written
-- with every heartbeat, in place.
CREATE TABLE vitals_points (
    at           timestamptz NOT NULL,
    beats        integer NOT NULL CHECK (beats > 0),
    heap_free    integer NOT NULL,
    heap_min     integer NOT NULL,
    heap_largest integer NOT NULL,
    uptime       integer NOT NULL, -- seconds
    reconnects   integer NOT NULL,
    boots        integer NOT NULL,
    temperature  real,
    rssi         smallint,
    restarted    boolean NOT NULL,
    device_id    text COLLATE "C" NOT NULL,
    PRIMARY KEY (at, device_id)
) PARTITION BY RANGE (at);
CREATE TABLE vitals_points_default PARTITION OF vitals_points DEFAULT;

-- Older points, moved here as hours: a point is in one of the two tables. They
-- come a day at a time, device by device, so that a device's lie together.
CREATE TABLE vitals_hours (LIKE vitals_points INCLUDING CONSTRAINTS, PRIMARY KEY (device_id, at)) PARTITION BY RANGE (at);
CREATE TABLE vitals_hours_default PARTITION OF vitals_hours DEFAULT;

-- ensure_vitals_day makes the partition of a day (UTC) if it is missing. Rows
-- that fell into the default partition meanwhile move over.
-- +goose StatementBegin
CREATE FUNCTION ensure_vitals_day(parent text, day date, fill integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    part  text := parent || to_char(day, '"_"YYYY"_"MM"_"DD');
    lower timestamptz := day::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(part) IS NOT NULL THEN RETURN 0; END IF;
    EXECUTE format('LOCK TABLE ONLY %I IN SHARE UPDATE EXCLUSIVE MODE', parent);
    IF to_regclass(part) IS NOT NULL THEN RETURN 0; END IF;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL) WITH (fillfactor = %s)', part, parent, fill);
    EXECUTE format('WITH moved AS (DELETE FROM %I WHERE at >= %L AND at < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
        parent || '_default', lower, upper, part);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, lower, upper);
    RETURN 1;
END $$;
-- +goose StatementEnd

-- ensure_vitals_partitions makes the partitions of yesterday, today and the
-- next three days.
CREATE FUNCTION ensure_vitals_partitions(now timestamptz) RETURNS bigint
LANGUAGE sql AS $$
    SELECT sum(ensure_vitals_day('vitals_points', (now AT TIME ZONE 'UTC')::date + i, 45)) FROM generate_series(-1, 3) AS i
$$;

-- vitals_days_before are the partitions of a table whose days lie wholly before
-- the cutoff, oldest first.
CREATE FUNCTION vitals_days_before(parent text, cutoff timestamptz) RETURNS TABLE (part text, day date)
LANGUAGE sql STABLE AS $$
    SELECT c.relname::text, to_date(right(c.relname, 10), 'YYYY_MM_DD') AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = parent::regclass AND c.relname ~ '_\d{4}_\d{2}_\d{2}$'
    AND (to_date(right(c.relname, 10), 'YYYY_MM_DD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
    ORDER BY 2
$$;

-- drop_vitals_before drops the days that lie wholly before the cutoff. It waits
-- for nobody long: the caller tries again.
-- +goose StatementBegin
CREATE FUNCTION drop_vitals_before(cutoff timestamptz) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    gone    text;
    dropped integer := 0;
BEGIN
    FOR gone IN
        SELECT part FROM vitals_days_before('vitals_points', cutoff) UNION ALL SELECT part FROM vitals_days_before('vitals_hours', cutoff)
    LOOP
        EXECUTE format('DROP TABLE %I', gone);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd

SELECT ensure_vitals_partitions(now());

CREATE TABLE device_jobs (
    device_id     text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL CHECK (id <> ''),
    kind          text NOT NULL,
    state         text COLLATE "C" NOT NULL CHECK (state IN ('accepted', 'progress', 'done', 'failed')),
    percent       smallint NOT NULL CHECK (percent BETWEEN 0 AND 100),
    code          text NOT NULL,
    reason        text NOT NULL,
    deployment_id uuid,
    started_at    timestamptz NOT NULL, -- the first report
    accepted_at   timestamptz,          -- as far as it was told, and if the name may be used again
    updated_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    PRIMARY KEY (device_id, id),
    CONSTRAINT job_ends_with_its_outcome CHECK ((finished_at IS NOT NULL) = (state IN ('done', 'failed')))
) WITH (fillfactor = 70);

CREATE TABLE device_configs (
    device_id text COLLATE "C" PRIMARY KEY,
    version   bigint NOT NULL,
    on_trial  boolean NOT NULL,
    reverted  bigint NOT NULL,
    settings  json NOT NULL,
    at        timestamptz NOT NULL
) WITH (fillfactor = 70);
