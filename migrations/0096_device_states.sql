-- +goose Up

-- What each device was: one row for each period in which none of these columns changed, and an open one, which ends at
-- infinity, for the present. The triggers below write the rows, so that no writer can forget it. A row refers to other
-- tables by number: a row of devices is ten times as wide.
--
-- Rows that end at or before the beginning of the history (history_start) were made from device_firmware: of them
-- only the time, the version and the kind are known.
--
-- The references to profiles and tag sets are no foreign keys: their checks would lock rows that many devices share.
CREATE TABLE device_states (
    begun_at    timestamptz NOT NULL,
    ended_at    timestamptz NOT NULL,
    number      integer NOT NULL,
    profile_id  integer NOT NULL,
    tags_id     integer NOT NULL,
    hold_since  timestamptz,
    hold_until  timestamptz,
    hold_reason text,
    PRIMARY KEY (number, begun_at),
    CHECK (ended_at > begun_at)
);

-- The number of each device, and its names. The numbers are small and dense, so that arrays and bitmaps of all devices
-- are indexed by them.
CREATE SEQUENCE device_numbers AS integer;
CREATE TABLE device_names (
    begun_at  timestamptz NOT NULL,
    ended_at  timestamptz NOT NULL,
    number    integer NOT NULL,
    device_id text COLLATE "C" NOT NULL,
    name      text NOT NULL,
    name_key  text COLLATE "C" NOT NULL,
    title_key text COLLATE "C" NOT NULL GENERATED ALWAYS AS (CASE WHEN name_key = '' THEN device_id ELSE name_key END) STORED,
    PRIMARY KEY (number, begun_at),
    CHECK (ended_at > begun_at)
);

-- What many devices have in common. Two transactions that need a new row at once may both add it: were it unique, one
-- would wait for the other, and they could wait for each other. Rows that no state uses are first marked, from when on
-- no new state uses them, and deleted later.
CREATE TABLE device_profiles (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    unused_since timestamptz,
    in_service   boolean NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    enrolment    text COLLATE "C" NOT NULL,
    chip         text COLLATE "C" NOT NULL,
    board        text COLLATE "C" NOT NULL,
    board_key    text COLLATE "C" NOT NULL,
    version      text COLLATE "C" NOT NULL,
    version_key  bigint[],
    inventory_id text COLLATE "C" REFERENCES inventories (id)
);
CREATE TABLE device_tag_sets (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    unused_since timestamptz,
    tags         text[] NOT NULL,
    tags_key     text COLLATE "C" NOT NULL
);

-- From when on the states of devices are known (at), and from when on their versions are.
CREATE TABLE history_start (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    at          timestamptz NOT NULL,
    versions_at timestamptz NOT NULL
);

-- All devices at some moments, as columns by number: a byte for the presence (0 pending, 1 online, 2 unresponsive, 3
-- unknown_edge, 4 offline) and four for the ids of profile and tag set. Another moment is the latest frame before it
-- and the changes since then.
CREATE TABLE fleet_frames (
    at       timestamptz PRIMARY KEY,
    presence bytea NOT NULL,
    profiles bytea NOT NULL,
    tags     bytea NOT NULL
);

-- How many devices had which profile at some moments.
CREATE TABLE profile_counts (
    at       timestamptz PRIMARY KEY,
    profiles integer[] NOT NULL,
    devices  integer[] NOT NULL
);

-- The numbers of deleted devices, which frames may contain.
CREATE TABLE device_removals (
    removed_at timestamptz NOT NULL,
    number     integer NOT NULL
);

INSERT INTO history_start (at, versions_at)
    SELECT now(), least(now(), (SELECT min(first_seen) FROM device_firmware));
INSERT INTO device_names (begun_at, ended_at, number, device_id, name, name_key)
    SELECT now(), 'infinity', nextval('device_numbers'), id, name, name_key
    FROM (SELECT id, name, name_key FROM devices ORDER BY created_at, id) d;
INSERT INTO device_tag_sets (tags, tags_key) VALUES ('{}', '');
INSERT INTO device_tag_sets (tags, tags_key)
    SELECT DISTINCT tags, tags_key FROM devices WHERE (tags, tags_key) <> ('{}', '');
INSERT INTO device_profiles (in_service, kind, enrolment, chip, board, board_key, version, version_key, inventory_id)
    SELECT DISTINCT in_service, kind, enrolment, chip, board, board_key, version, version_key, inventory_id FROM devices
    UNION SELECT DISTINCT true, d.kind, '', '', '', '', f.version, NULL::bigint[], NULL FROM device_firmware f
    JOIN devices d ON d.id = f.device_id;
ANALYZE device_names, device_profiles, device_tag_sets;
INSERT INTO device_states (begun_at, ended_at, number, profile_id, tags_id, hold_since, hold_until, hold_reason)
    SELECT now(), 'infinity', n.number, p.id, t.id, d.hold_since, d.hold_until, d.hold_reason
    FROM devices d
        JOIN device_names n ON n.device_id = d.id
        JOIN device_tag_sets t ON (t.tags, t.tags_key) = (d.tags, d.tags_key)
        JOIN device_profiles p ON (p.in_service, p.kind, p.enrolment, p.chip, p.board, p.board_key, p.version,
            coalesce(p.version_key, '{}'), coalesce(p.inventory_id, '')) = (d.in_service, d.kind, d.enrolment, d.chip,
            d.board, d.board_key, d.version, coalesce(d.version_key, '{}'), coalesce(d.inventory_id, ''))
            AND (p.version_key IS NULL) = (d.version_key IS NULL);

-- A device that has not joined may be deleted, with all records of it: counts of the past leave it out.
INSERT INTO device_states (begun_at, ended_at, number, profile_id, tags_id)
    SELECT f.first_seen, f.until, n.number, p.id, t.id
    FROM (SELECT device_id, version, first_seen, lead(first_seen) OVER (PARTITION BY device_id ORDER BY id) AS next
            FROM device_firmware) g
        JOIN devices d ON d.id = g.device_id AND d.enrolled_at IS NOT NULL
        JOIN device_names n ON n.device_id = d.id
        JOIN device_profiles p ON p.version = g.version AND p.kind = d.kind AND p.enrolment = ''
        JOIN device_tag_sets t ON t.tags_key = ''
        CROSS JOIN LATERAL (SELECT g.first_seen, least(g.next, d.retired_at, now()) AS until) f
    WHERE f.until > f.first_seen
    ON CONFLICT DO NOTHING;

INSERT INTO fleet_frames (at, presence, profiles, tags)
    SELECT now(), coalesce('\x00' || string_agg(CASE d.presence WHEN 'online' THEN '\x01'::bytea WHEN 'unresponsive' THEN
        '\x02' WHEN 'unknown_edge' THEN '\x03' WHEN 'offline' THEN '\x04' ELSE '\x00' END, '' ORDER BY n.number), ''), '', ''
    FROM devices d JOIN device_names n ON n.device_id = d.id;

CREATE INDEX device_states_begun ON device_states (begun_at);
CREATE INDEX device_states_ended ON device_states (ended_at);
CREATE INDEX device_states_held ON device_states (ended_at) WHERE hold_since IS NOT NULL;
CREATE UNIQUE INDEX device_names_open ON device_names (device_id) INCLUDE (number) WHERE ended_at = 'infinity';
CREATE INDEX device_names_title ON device_names (title_key, device_id);
CREATE INDEX device_names_begun ON device_names (begun_at);
CREATE INDEX device_profiles_content ON device_profiles (md5(board || E'\x01' || version));
CREATE INDEX device_tag_sets_content ON device_tag_sets (md5(tags_key));
CREATE INDEX device_removals_at ON device_removals (removed_at);
ANALYZE device_states, device_names;

-- +goose StatementBegin
CREATE FUNCTION profile_of(d devices) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found integer;
BEGIN
    SELECT id INTO found FROM device_profiles p
        WHERE md5(p.board || E'\x01' || p.version) = md5(d.board || E'\x01' || d.version) AND unused_since IS NULL
            AND (p.board, p.version, p.board_key, p.chip, p.kind, p.enrolment, p.in_service)
                = (d.board, d.version, d.board_key, d.chip, d.kind, d.enrolment, d.in_service)
            AND (p.version_key, p.inventory_id) IS NOT DISTINCT FROM (d.version_key, d.inventory_id)
        ORDER BY id LIMIT 1;
    IF found IS NULL THEN
        INSERT INTO device_profiles (in_service, kind, enrolment, chip, board, board_key, version, version_key, inventory_id)
            VALUES (d.in_service, d.kind, d.enrolment, d.chip, d.board, d.board_key, d.version, d.version_key, d.inventory_id)
            RETURNING id INTO found;
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION tag_set_of(d devices) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found integer;
BEGIN
    SELECT id INTO found FROM device_tag_sets t
        WHERE md5(t.tags_key) = md5(d.tags_key) AND (t.tags, t.tags_key) = (d.tags, d.tags_key) AND unused_since IS NULL
        ORDER BY id LIMIT 1;
    IF found IS NULL THEN
        INSERT INTO device_tag_sets (tags, tags_key) VALUES (d.tags, d.tags_key) RETURNING id INTO found;
    END IF;
    RETURN found;
END $$;

-- The clock is read after the row is locked, so that the periods of a device follow each other. If the clock was set
-- back, the time from now on has not come yet: what was kept of it is cut off.
--
-- A plan that was made while the tables were almost empty would read all of them for each device.
CREATE FUNCTION keep_device_state() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    moment  timestamptz := clock_timestamp();
    last    timestamptz;
    n       integer;
    renamed boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        SELECT number INTO n FROM device_names WHERE device_id = NEW.id AND ended_at = 'infinity';
    END IF;
    IF n IS NOT NULL THEN
        renamed := (OLD.name, OLD.name_key) <> (NEW.name, NEW.name_key);
        SELECT max(begun_at) INTO last FROM device_states WHERE number = n;
        IF last < moment THEN
            UPDATE device_states SET ended_at = moment WHERE number = n AND begun_at = last;
        ELSE
            renamed := true;
            DELETE FROM device_states WHERE number = n AND begun_at >= moment;
            UPDATE device_states SET ended_at = moment WHERE number = n AND ended_at > moment;
            DELETE FROM fleet_frames WHERE at > moment;
            DELETE FROM profile_counts WHERE at > moment;
        END IF;
        IF renamed THEN
            DELETE FROM device_names WHERE number = n AND begun_at >= moment;
            UPDATE device_names SET ended_at = moment WHERE number = n AND ended_at > moment;
        END IF;
    ELSE
        n := nextval('device_numbers');
        renamed := true;
    END IF;
    INSERT INTO device_states (begun_at, ended_at, number, profile_id, tags_id, hold_since, hold_until, hold_reason)
        VALUES (moment, 'infinity', n, profile_of(NEW), tag_set_of(NEW), NEW.hold_since, NEW.hold_until, NEW.hold_reason);
    IF renamed THEN
        INSERT INTO device_names (begun_at, ended_at, number, device_id, name, name_key)
            VALUES (moment, 'infinity', n, NEW.id, NEW.name, NEW.name_key);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION drop_device_states() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    n integer;
BEGIN
    SELECT number INTO n FROM device_names WHERE device_id = OLD.id AND ended_at = 'infinity';
    DELETE FROM device_states WHERE number = n;
    DELETE FROM device_names WHERE number = n;
    INSERT INTO device_removals VALUES (clock_timestamp(), n);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- It costs nothing where presence, vitals or the time of the latest message are written, and a comparison where a
-- boot poll is.
CREATE TRIGGER device_state_changed AFTER UPDATE OF name, name_key, board, board_key, chip, kind, version, version_key, tags,
    tags_key, inventory_id, hold_since, hold_until, hold_reason, enrolment, retired_at ON devices
FOR EACH ROW WHEN ((OLD.name, OLD.name_key, OLD.board, OLD.board_key, OLD.chip, OLD.kind, OLD.version, OLD.version_key,
    OLD.tags, OLD.tags_key, OLD.inventory_id, OLD.hold_since, OLD.hold_until, OLD.hold_reason, OLD.enrolment,
    OLD.in_service) IS DISTINCT FROM (NEW.name, NEW.name_key, NEW.board, NEW.board_key, NEW.chip, NEW.kind, NEW.version,
    NEW.version_key, NEW.tags, NEW.tags_key, NEW.inventory_id, NEW.hold_since, NEW.hold_until, NEW.hold_reason,
    NEW.enrolment, NEW.in_service)) EXECUTE FUNCTION keep_device_state();
CREATE TRIGGER device_state_first AFTER INSERT ON devices FOR EACH ROW EXECUTE FUNCTION keep_device_state();
CREATE TRIGGER device_state_last AFTER DELETE ON devices FOR EACH ROW EXECUTE FUNCTION drop_device_states();
