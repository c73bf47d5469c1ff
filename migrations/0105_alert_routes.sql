-- +goose Up

-- A silence keeps alerts from being sent for a while: one alert, those of a kind, or those whose devices all match
-- query. scope is the filter of an operator who may act on some devices only: the alert's devices must match it, too.
CREATE TABLE silences (
    id         uuid PRIMARY KEY,
    alert_id   uuid REFERENCES alerts (id) ON DELETE CASCADE,
    kind       text COLLATE "C" NOT NULL DEFAULT '',
    query      text NOT NULL DEFAULT '',
    scope      text NOT NULL DEFAULT '',
    reason     text NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 2000),
    created_at timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    by_kind    text NOT NULL,
    by_id      text NOT NULL,
    by_name    text NOT NULL,
    by_role    text NOT NULL,
    ended_at   timestamptz, -- by a person, before its time
    ended_by   text NOT NULL DEFAULT '',
    CONSTRAINT silences_something CHECK (alert_id IS NOT NULL OR kind <> '' OR query <> ''),
    CONSTRAINT silences_last CHECK (until > created_at)
);
CREATE INDEX silences_until ON silences (until) WHERE ended_at IS NULL;
CREATE INDEX silences_alert ON silences (alert_id) WHERE alert_id IS NOT NULL;

-- silence_id is the silence that keeps the alert from being sent, until fleetd has sent it after the silence's end.
-- routed lists the webhooks with a route that the alert has come into: they also get its end.
ALTER TABLE alerts
    ADD COLUMN silence_id uuid REFERENCES silences (id) ON DELETE SET NULL,
    ADD COLUMN routed uuid[] NOT NULL DEFAULT '{}';
CREATE INDEX alerts_silence ON alerts (silence_id) WHERE silence_id IS NOT NULL;

-- Events of silenced alerts are in the history, and are not sent.
ALTER TABLE alert_events
    ADD COLUMN silenced boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT alert_events_event_check,
    ADD CONSTRAINT alert_events_event_check
        CHECK (event IN ('opened', 'worsened', 'acknowledged', 'ended', 'silenced', 'unsilenced'));

-- shape is the format of the deliveries, chat the Telegram chat that gets them, lang the language of their text. The
-- route limits the alerts that a webhook gets: to devices, to a severity and above, to kinds ('{}': all).
ALTER TABLE webhooks
    ADD COLUMN shape text COLLATE "C" NOT NULL DEFAULT 'fleetd',
    ADD COLUMN chat text NOT NULL DEFAULT '',
    ADD COLUMN lang text NOT NULL DEFAULT 'en',
    ADD COLUMN route_query text NOT NULL DEFAULT '',
    ADD COLUMN route_severity text NOT NULL DEFAULT 'warning' CHECK (route_severity IN ('warning', 'bad')),
    ADD COLUMN route_kinds text[] NOT NULL DEFAULT '{}';
