-- +goose Up

-- The audit log lists all kinds of entries of the fleet, the newest first.
CREATE INDEX presence_changes_newest ON presence_changes (at DESC);
DROP INDEX presence_changes_at; -- the oldest are found by the new one, too
CREATE INDEX deployment_events_newest ON deployment_events (at DESC) WHERE kind <> 'planned';
CREATE INDEX device_firmware_newest ON device_firmware (first_seen DESC);
