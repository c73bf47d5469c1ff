-- +goose Up

-- The parameters of error_code, such as the size of an answer that was not
-- kept: json, as all that a call's record holds to the letter. No row has any
-- yet, so the constraint need not look for them.
ALTER TABLE calls ADD COLUMN error_params json,
    ADD CONSTRAINT params_have_code CHECK (error_params IS NULL OR error_code IS NOT NULL) NOT VALID;
