-- +goose Up

-- A call may wait until its device is back. wait_until is on record of calls that
-- had to wait, or to be approved first. Old rows meet the new constraints since they
-- met the old ones.
ALTER TABLE calls
    ADD COLUMN wait_until timestamptz,
    DROP CONSTRAINT state_known,
    ADD CONSTRAINT state_known CHECK (state IN ('pending_approval', 'pending_device', 'pending', 'sent', 'succeeded',
        'tool_error', 'timed_out', 'unknown', 'refused', 'invalid', 'offline', 'canceled')) NOT VALID,
    DROP CONSTRAINT final_is_finished,
    ADD CONSTRAINT final_is_finished CHECK ((state IN ('pending_approval', 'pending_device', 'pending', 'sent')) =
        (finished_at IS NULL)) NOT VALID,
    ADD CONSTRAINT waiting_has_end CHECK (state <> 'pending_device' OR wait_until IS NOT NULL) NOT VALID;

-- The calls that wait, and those among them that were sent and are not over: what is
-- open is looked for among the newest calls only, and these may be older. created_at
-- is that of the call, and leads to its partition. A row may outlive its call's
-- waiting; it says nothing then.
CREATE TABLE call_waits (
    call_id    uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    interrupt  boolean NOT NULL,
    picture    text NOT NULL
);

-- Who approves is shown that the call may wait, and the digest covers it.
ALTER TABLE approvals ADD COLUMN wait_until timestamptz;
