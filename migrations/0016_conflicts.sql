-- +goose Up

-- What shows that two units use one Device-Id. It stands for a day after
-- conflict_last; the next conflict replaces what is left of it.
ALTER TABLE devices
    ADD COLUMN conflict_code text CHECK (conflict_code = 'duplicate_device_id'),
    ADD COLUMN conflict_first timestamptz,
    ADD COLUMN conflict_last timestamptz,
    ADD COLUMN conflict_evidence text[],
    ADD COLUMN conflict_sides json,
    ADD CONSTRAINT conflict_is_whole CHECK (
        num_nulls(conflict_code, conflict_first, conflict_last, conflict_evidence, conflict_sides) IN (0, 5));
CREATE INDEX devices_conflict ON devices (conflict_last) WHERE conflict_last IS NOT NULL;
