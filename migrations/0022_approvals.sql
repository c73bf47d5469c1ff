-- +goose Up

-- Who made a token: whoever asked for an approval cannot give it, through no
-- token of theirs either. Older tokens have only a name; the audit entry of their
-- creation has the rest.
ALTER TABLE tokens
    ADD COLUMN created_by_kind text NOT NULL DEFAULT '',
    ADD COLUMN created_by_id   text NOT NULL DEFAULT '';
UPDATE tokens t SET created_by_kind = a.actor_kind, created_by_id = a.actor_id
FROM audit_entries a WHERE a.action = 'token.create' AND a.subject = t.id::text;
UPDATE tokens t SET created_by_kind = 'operator', created_by_id = o.id::text
FROM operators o WHERE t.created_by_kind = '' AND o.name = t.created_by;

-- A call may wait for a person before it waits for its device. Old rows meet the
-- new constraints since they met the old ones.
ALTER TABLE calls
    ADD COLUMN approval_id uuid,
    DROP CONSTRAINT state_known,
    ADD CONSTRAINT state_known CHECK (state IN ('pending_approval', 'pending', 'sent', 'succeeded', 'tool_error',
        'timed_out', 'unknown', 'refused', 'invalid', 'offline', 'canceled')) NOT VALID,
    DROP CONSTRAINT final_is_finished,
    ADD CONSTRAINT final_is_finished CHECK ((state IN ('pending_approval', 'pending', 'sent')) = (finished_at IS NULL))
        NOT VALID,
    ADD CONSTRAINT waiting_has_approval CHECK (state <> 'pending_approval' OR approval_id IS NOT NULL) NOT VALID;

-- started_at is when a fan-out that had to wait for its approval began.
ALTER TABLE fanouts
    ADD COLUMN approval_id    uuid,
    ADD COLUMN policy_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN started_at     timestamptz,
    DROP CONSTRAINT fanouts_state_check,
    ADD CONSTRAINT fanouts_state_check CHECK (state IN ('pending_approval', 'running', 'completed', 'canceled', 'refused')),
    DROP CONSTRAINT final_is_finished,
    ADD CONSTRAINT final_is_finished CHECK ((state IN ('pending_approval', 'running')) = (finished_at IS NULL)),
    ADD CONSTRAINT waiting_has_approval CHECK (state <> 'pending_approval' OR approval_id IS NOT NULL);

-- What a person is asked: one row for each call or fan-out, made with it in one
-- transaction, and decided once. created_at is that of the call, and leads to its
-- partition. asked_line are the ids of who asked and of all who made the tokens
-- up to there.
CREATE TABLE approvals (
    id              uuid PRIMARY KEY,
    subject         text NOT NULL CHECK (subject IN ('call', 'fanout')),
    subject_id      uuid NOT NULL,
    digest          bytea NOT NULL CHECK (octet_length(digest) = 32),
    asked_kind      text NOT NULL,
    asked_id        text NOT NULL,
    asked_name      text NOT NULL,
    asked_role      text NOT NULL,
    asked_line      text[] NOT NULL,
    person          text NOT NULL,
    purpose         text NOT NULL CHECK (octet_length(purpose) <= 300),
    rule            text NOT NULL,
    rule_name       text NOT NULL,
    policy_version  bigint NOT NULL,
    device_id       text COLLATE "C" NOT NULL,
    query           text NOT NULL,
    targets         integer NOT NULL CHECK (targets > 0),
    tool            text COLLATE "C" NOT NULL,
    arguments       json NOT NULL,
    picture         text NOT NULL,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    state           text NOT NULL CHECK (state IN ('waiting', 'approved', 'denied', 'expired', 'withdrawn')),
    decided_kind    text NOT NULL DEFAULT '',
    decided_id      text NOT NULL DEFAULT '',
    decided_name    text NOT NULL DEFAULT '',
    decided_role    text NOT NULL DEFAULT '',
    decided_at      timestamptz,
    decision_reason text NOT NULL DEFAULT '',
    code            text NOT NULL DEFAULT '', -- of the refusal that it ended in; '' while it waits, and once approved
    process         uuid, -- of fleetd that carries the approved call out
    CONSTRAINT one_for_each_subject UNIQUE (subject, subject_id),
    CONSTRAINT expires_later CHECK (expires_at > created_at),
    CONSTRAINT decided_has_time CHECK ((state = 'waiting') = (decided_at IS NULL)),
    CONSTRAINT call_has_device CHECK ((subject = 'call') = (device_id <> ''))
);
CREATE INDEX approvals_waiting ON approvals (expires_at) WHERE state = 'waiting';
CREATE INDEX approvals_approved ON approvals (decided_at DESC) WHERE state = 'approved' AND subject = 'call';
CREATE INDEX approvals_created ON approvals (created_at);

CREATE TABLE webhooks (
    id              uuid PRIMARY KEY,
    name            text NOT NULL CHECK (name <> ''),
    url             text NOT NULL CHECK (url ~ '^https?://'),
    events          text[] NOT NULL CHECK (cardinality(events) > 0),
    secret          bytea NOT NULL, -- sealed
    enabled         boolean NOT NULL,
    created_by      text NOT NULL,
    created_at      timestamptz NOT NULL,
    last_event      text NOT NULL DEFAULT '',
    last_at         timestamptz,
    last_status     integer NOT NULL DEFAULT 0, -- of HTTP; 0: no answer
    last_code       text NOT NULL DEFAULT '', -- why the last delivery failed; '' if it did not
    last_params     json
);
