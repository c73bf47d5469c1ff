-- +goose Up

-- Why the parts of a merged binary do not go together was an English sentence;
-- it is a code with parameters now. A text that is there already becomes the
-- code "legacy" with the parameter detail.
ALTER TABLE image_layouts ADD COLUMN problem_code text NOT NULL DEFAULT '', ADD COLUMN problem_params jsonb;
UPDATE image_layouts SET problem_code = 'legacy', problem_params = jsonb_build_object('detail', problem)
WHERE problem <> '';
ALTER TABLE image_layouts DROP COLUMN problem;
