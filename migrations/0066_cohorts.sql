-- +goose Up

-- When the first attempt of a deployment began: abort rules count its device among
-- those that were dispatched before and after it. Of an attempt of an earlier
-- version only the latest is known.
ALTER TABLE deployments ADD COLUMN dispatched_at timestamptz;
UPDATE deployments SET dispatched_at = coalesce(sent_at, updated_at) WHERE attempt > 0;

-- When an operator went on in spite of the failures so far, in place of their number.
ALTER TABLE campaigns ADD COLUMN overruled_at timestamptz;
UPDATE campaigns SET overruled_at = now() WHERE overruled > 0;
ALTER TABLE campaigns DROP COLUMN overruled;
