-- +goose Up
-- An operator can take back an acknowledgement.
ALTER TABLE alert_events
    DROP CONSTRAINT alert_events_event_check,
    ADD CONSTRAINT alert_events_event_check
        CHECK (event IN ('opened', 'worsened', 'acknowledged', 'reopened', 'ended', 'silenced', 'unsilenced'));
