-- +goose Up

-- An approval names how each device describes the tool, and the firmware that it
-- runs: both are part of its digest, and something else is not called. Approvals
-- that waited before have neither, and are good for nothing.
ALTER TABLE approvals
    ADD COLUMN builds json, -- groups of devices that are alike: tool_sha256, elf_sha256, version, devices
    ADD COLUMN stale text NOT NULL DEFAULT ''; -- of the code approval_stale: what is different

-- The same for each device of a fan-out that needs an approval; NULL for others.
ALTER TABLE fanout_targets
    ADD COLUMN tool_digest bytea,
    ADD COLUMN elf_sha256 text,
    ADD COLUMN version text;
