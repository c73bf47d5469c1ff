-- +goose Up

-- What is wrong with the fleet, and was: one row from the moment a condition is
-- found to hold until it has not held for a while. subject is the campaign or the
-- upstream that it is about, '' for the fleet. quiet_since is when an alert that
-- is not ended was last found not to hold.
CREATE TABLE alerts (
    id          uuid PRIMARY KEY,
    kind        text COLLATE "C" NOT NULL CHECK (kind <> ''),
    subject     text COLLATE "C" NOT NULL DEFAULT '',
    state       text COLLATE "C" NOT NULL CHECK (state IN ('open', 'acknowledged', 'ended')),
    severity    text NOT NULL CHECK (severity IN ('warning', 'bad')),
    devices     integer NOT NULL DEFAULT 0 CHECK (devices >= 0),
    params      json,
    query       text NOT NULL DEFAULT '',
    began_at    timestamptz NOT NULL,
    quiet_since timestamptz,
    ended_at    timestamptz,
    acked_kind  text NOT NULL DEFAULT '',
    acked_id    text NOT NULL DEFAULT '',
    acked_name  text NOT NULL DEFAULT '',
    acked_role  text NOT NULL DEFAULT '',
    acked_at    timestamptz,
    acked_count integer NOT NULL DEFAULT 0,
    note        text NOT NULL DEFAULT '' CHECK (octet_length(note) <= 1000),
    CONSTRAINT ended_has_time CHECK ((state = 'ended') = (ended_at IS NOT NULL)),
    CONSTRAINT acknowledged_by_someone CHECK (state <> 'acknowledged' OR acked_at IS NOT NULL)
);
CREATE UNIQUE INDEX alerts_one_of_a_subject ON alerts (kind, subject) WHERE state <> 'ended';

-- What happened to alerts, in order. Mails are written from here.
CREATE TABLE alert_events (
    seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alert_id uuid NOT NULL REFERENCES alerts (id) ON DELETE CASCADE,
    at       timestamptz NOT NULL,
    event    text COLLATE "C" NOT NULL CHECK (event IN ('opened', 'worsened', 'acknowledged', 'ended')),
    severity text NOT NULL CHECK (severity IN ('warning', 'bad')),
    devices  integer NOT NULL,
    by_kind  text NOT NULL DEFAULT '',
    by_id    text NOT NULL DEFAULT '',
    by_name  text NOT NULL DEFAULT '',
    by_role  text NOT NULL DEFAULT '',
    note     text NOT NULL DEFAULT ''
);
CREATE INDEX alert_events_alert ON alert_events (alert_id, seq);

-- unexplained marks tools that differ from those that the device listed before
-- with the same firmware.
ALTER TABLE device_inventories ADD COLUMN unexplained boolean NOT NULL DEFAULT false;
CREATE INDEX device_inventories_unexplained ON device_inventories (first_seen) WHERE unexplained;

CREATE INDEX deployments_rolled_back ON deployments (finished_at) WHERE state = 'rolled_back';
