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
-- each step. One partition per day (UTC): a day goes at once.
CREATE TABLE vitals_points (
    at           timestamptz NOT NULL,
    device_id    text COLLATE "C" NOT NULL,
    beats        integer NOT NULL CHECK (beats > 0),
    heap_free    bigint NOT NULL,
    heap_min     bigint NOT NULL,
    heap_largest bigint NOT NULL,
    uptime       integer NOT NULL, -- seconds
    reconnects   integer NOT NULL,
    boots        integer NOT NULL,
    temperature  real,
    rssi         smallint,
    restarted    boolean NOT NULL,
    PRIMARY KEY (at, device_id)
) PARTITION BY RANGE (at);
CREATE TABLE vitals_points_default PARTITION OF vitals_points DEFAULT;

-- ensure_vitals_partitions makes the partitions of yesterday, today and the
-- next three days. Rows that fell into the default partition meanwhile move over.
-- +goose StatementBegin
CREATE FUNCTION ensure_vitals_partitions(now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    day   date;
    part  text;
    lower timestamptz;
    upper timestamptz;
    made  integer := 0;
BEGIN
    FOR i IN -1..3 LOOP
        day := (now AT TIME ZONE 'UTC')::date + i;
        part := 'vitals_points' || to_char(day, '"_"YYYY"_"MM"_"DD');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        LOCK TABLE ONLY vitals_points IN SHARE UPDATE EXCLUSIVE MODE;
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        LOCK TABLE vitals_points_default IN ACCESS EXCLUSIVE MODE;
        lower := day::timestamp AT TIME ZONE 'UTC';
        upper := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE %I (LIKE vitals_points INCLUDING ALL) WITH (fillfactor = 70)', part);
        EXECUTE format('WITH moved AS (DELETE FROM vitals_points_default WHERE at >= %L AND at < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
            lower, upper, part);
        EXECUTE format('ALTER TABLE vitals_points ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, lower, upper);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

-- drop_vitals_before drops the days that lie wholly before the cutoff. It waits
-- for nobody long: the caller tries again.
-- +goose StatementBegin
CREATE FUNCTION drop_vitals_before(cutoff timestamptz) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    part    text;
    dropped integer := 0;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'vitals_points'::regclass AND c.relname ~ '_\d{4}_\d{2}_\d{2}$'
        AND (to_date(right(c.relname, 10), 'YYYY_MM_DD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE %I', part);
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
