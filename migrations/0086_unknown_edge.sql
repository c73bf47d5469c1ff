-- +goose Up
-- A device has the presence unknown_edge while the edge that holds its connection is silent. It is
-- no change of the device: presence_changes does not have it.
ALTER TABLE devices DROP CONSTRAINT devices_presence_check;
ALTER TABLE devices ADD CONSTRAINT devices_presence_check
    CHECK (presence IN ('pending', 'online', 'unresponsive', 'unknown_edge', 'offline'));

ALTER TABLE presence_samples ADD COLUMN unknown_edge int NOT NULL DEFAULT 0;
