-- +goose Up

-- Board and chip of an enrolled device are pinned: rules, scopes and campaigns go by
-- them, and a device must not choose its own. What it claims since, if that differs, is
-- kept here until an operator decides.
ALTER TABLE devices
    ADD COLUMN claimed_board text,
    ADD COLUMN claimed_board_type text,
    ADD COLUMN claimed_chip text,
    ADD COLUMN claimed_at timestamptz,
    ADD CONSTRAINT claim_is_whole CHECK (
        num_nulls(claimed_board, claimed_board_type, claimed_chip, claimed_at) IN (0, 4));
CREATE INDEX devices_claimed ON devices (claimed_at) WHERE claimed_at IS NOT NULL;
