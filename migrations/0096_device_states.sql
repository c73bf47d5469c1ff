-- +goose Up

-- What a device was before its present state, which is in devices: one row for each period in which none of these
-- columns changed. The trigger below writes it, so that no writer can forget it. Rows come in the order of their
-- end, so that a question about a recent moment reads only the latest.
--
-- Rows that end at or before the beginning of the history (history_start) were made from device_firmware: of them
-- only the time, the version and the kind are known.
CREATE TABLE device_states (
    since        timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    hold_since   timestamptz,
    hold_until   timestamptz,
    tools_count  integer NOT NULL,
    in_service   boolean NOT NULL,
    device_id    text COLLATE "C" NOT NULL REFERENCES devices (id) ON DELETE CASCADE,
    title_key    text COLLATE "C" NOT NULL,
    name_key     text COLLATE "C" NOT NULL,
    board_key    text COLLATE "C" NOT NULL,
    tags_key     text COLLATE "C" NOT NULL,
    version      text COLLATE "C" NOT NULL,
    version_key  bigint[],
    inventory_id text COLLATE "C" REFERENCES inventories (id),
    chip         text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    enrolment    text COLLATE "C" NOT NULL,
    name         text NOT NULL,
    board        text NOT NULL,
    tags         text[] NOT NULL,
    hold_reason  text,
    PRIMARY KEY (device_id, since),
    CHECK (until > since)
);
CREATE INDEX device_states_until ON device_states (until);

-- state_since is when the present state of a device began.
ALTER TABLE devices ADD COLUMN state_since timestamptz NOT NULL DEFAULT now();

-- From when on the states of devices are known (at), and from when on their versions are.
CREATE TABLE history_start (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    at          timestamptz NOT NULL,
    versions_at timestamptz NOT NULL
);
INSERT INTO history_start (at, versions_at)
    SELECT now(), least(now(), (SELECT min(first_seen) FROM device_firmware));

INSERT INTO device_states (since, until, tools_count, in_service, device_id, title_key, name_key, board_key, tags_key,
    version, chip, kind, enrolment, name, board, tags)
SELECT f.first_seen, f.until, 0, true, d.id, '', '', '', '', f.version, '', d.kind, '', '', '', '{}'
FROM (SELECT device_id, version, first_seen, lead(first_seen) OVER (PARTITION BY device_id ORDER BY id) AS next
        FROM device_firmware) g
    JOIN devices d ON d.id = g.device_id
    CROSS JOIN LATERAL (SELECT g.version, g.first_seen, least(g.next, d.retired_at, now()) AS until) f
WHERE f.until > f.first_seen
ON CONFLICT DO NOTHING;

-- The clock is read after the row is locked, so that the periods of a device follow each other. If the clock was set
-- back, the time from now on has not come yet: what was kept of it is cut off.
-- +goose StatementBegin
CREATE FUNCTION keep_device_state() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    IF OLD.state_since < at THEN
        INSERT INTO device_states (since, until, hold_since, hold_until, tools_count, in_service, device_id, title_key,
            name_key, board_key, tags_key, version, version_key, inventory_id, chip, kind, enrolment, name, board, tags,
            hold_reason)
        VALUES (OLD.state_since, at, OLD.hold_since, OLD.hold_until, OLD.tools_count, OLD.in_service, OLD.id,
            OLD.title_key, OLD.name_key, OLD.board_key, OLD.tags_key, OLD.version, OLD.version_key, OLD.inventory_id,
            OLD.chip, OLD.kind, OLD.enrolment, OLD.name, OLD.board, OLD.tags, OLD.hold_reason);
    ELSE
        DELETE FROM device_states WHERE device_id = OLD.id AND since >= at;
        UPDATE device_states SET until = at WHERE device_id = OLD.id AND until > at;
    END IF;
    NEW.state_since := at;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- It costs nothing where presence, vitals or the time of the latest message are written, and a comparison where a
-- boot poll is.
CREATE TRIGGER keep_device_state BEFORE UPDATE OF name, board, chip, kind, version, tags, inventory_id, hold_since,
    hold_until, hold_reason, enrolment, retired_at ON devices
FOR EACH ROW WHEN ((OLD.name, OLD.board, OLD.chip, OLD.kind, OLD.version, OLD.tags, OLD.inventory_id, OLD.hold_since,
    OLD.hold_until, OLD.hold_reason, OLD.enrolment, OLD.retired_at IS NULL) IS DISTINCT FROM (NEW.name, NEW.board,
    NEW.chip, NEW.kind, NEW.version, NEW.tags, NEW.inventory_id, NEW.hold_since, NEW.hold_until, NEW.hold_reason,
    NEW.enrolment, NEW.retired_at IS NULL))
EXECUTE FUNCTION keep_device_state();

-- The presence of all devices at some moments: what presence_changes has since the latest of them gives it at
-- another one, without a search for each device.
CREATE TABLE presence_frames (
    at       timestamptz NOT NULL,
    presence text COLLATE "C" NOT NULL,
    devices  text[] COLLATE "C" NOT NULL,
    PRIMARY KEY (at, presence)
);

-- frame_presence adds a frame.
CREATE FUNCTION frame_presence(moment timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO presence_frames (at, presence, devices)
    SELECT moment, presence, array_agg(id ORDER BY id) FROM devices WHERE created_at <= moment GROUP BY presence
    ON CONFLICT DO NOTHING
$$;
SELECT frame_presence(now());
