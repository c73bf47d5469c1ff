-- +goose Up

-- Decisions of a process that has ended cannot come on record later: its sessions end before the next one begins.
ALTER TABLE approvals DROP COLUMN process;
