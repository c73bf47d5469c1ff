-- +goose Up

-- A campaign acts for those who asked for it: in whose name it goes on after one of
-- them was gone, who asked for its rollback (null: a rule of its plan), and why that
-- was not made.
ALTER TABLE campaigns
    ADD COLUMN taken_over_by          jsonb,
    ADD COLUMN rollback_by            jsonb,
    ADD COLUMN rollback_reason_code   text NOT NULL DEFAULT '',
    ADD COLUMN rollback_reason_params jsonb;
