-- +goose Up

-- Version 7 ids: their order is the order of time, and they lead to the month
-- a call lies in.
--
-- No index names state. A call's outcome is an update in place (HOT), which
-- any index over a column that changes would prevent. What is open is found
-- among the newest calls; failure serves the other questions about states.
--
-- arguments, result, evidence and late are json, not jsonb: a record keeps
-- what was said, to the letter, \u0000 included, and json is cheaper to write.
CREATE TABLE calls (
    id            uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    device_id     text COLLATE "C" NOT NULL CHECK (device_id <> ''),
    tool          text COLLATE "C" NOT NULL CHECK (tool <> ''),
    arguments     json,
    actor_kind    text NOT NULL CHECK (actor_kind <> ''),
    actor_id      text NOT NULL,
    actor_name    text COLLATE "C" NOT NULL,
    actor_role    text NOT NULL,
    fanout_id     uuid,
    state         text NOT NULL,
    failure       text COLLATE "C",
    result        json,
    result_hash   bytea,
    error_code    text,
    error_message text,
    evidence      json,
    late          json,
    rpc_id        integer NOT NULL DEFAULT 0,
    timeout_ms    bigint NOT NULL DEFAULT 0,
    sent_at       timestamptz,
    finished_at   timestamptz,
    PRIMARY KEY (id, created_at),
    CONSTRAINT state_known CHECK (state IN ('pending', 'sent', 'succeeded', 'tool_error', 'timed_out', 'unknown',
        'refused', 'invalid', 'offline', 'canceled')),
    CONSTRAINT final_is_finished CHECK ((state IN ('pending', 'sent')) = (finished_at IS NULL)),
    CONSTRAINT sent_has_time CHECK (state <> 'sent' OR sent_at IS NOT NULL),
    CONSTRAINT failure_is_state CHECK (failure IS NULL OR failure = state),
    CONSTRAINT error_is_whole CHECK ((error_code IS NULL) = (error_message IS NULL))
) PARTITION BY RANGE (created_at);
CREATE INDEX calls_device ON calls (device_id, id DESC);
CREATE INDEX calls_tool ON calls (tool, id DESC);
CREATE INDEX calls_actor ON calls (actor_name, id DESC);
CREATE INDEX calls_fanout ON calls (fanout_id, device_id, id DESC) WHERE fanout_id IS NOT NULL;
CREATE INDEX calls_failed ON calls (id DESC) WHERE failure IS NOT NULL;
CREATE INDEX calls_failure ON calls (failure, id DESC) WHERE failure IS NOT NULL;
CREATE TABLE calls_default PARTITION OF calls DEFAULT;

CREATE TABLE fanouts (
    id            uuid PRIMARY KEY,
    actor_kind    text NOT NULL,
    actor_id      text NOT NULL,
    actor_name    text NOT NULL,
    actor_role    text NOT NULL,
    query         text NOT NULL,
    tool          text NOT NULL,
    arguments     json,
    max_in_flight integer NOT NULL CHECK (max_in_flight > 0),
    timeout_ms    bigint NOT NULL CHECK (timeout_ms >= 0),
    state         text NOT NULL CHECK (state IN ('running', 'completed', 'canceled')),
    targets       integer NOT NULL CHECK (targets >= 0),
    skipped       integer NOT NULL CHECK (skipped >= 0),
    created_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    canceled_by   text NOT NULL DEFAULT '',
    CONSTRAINT final_is_finished CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE INDEX fanouts_running ON fanouts (id) WHERE state = 'running';

CREATE TABLE fanout_targets (
    fanout_id uuid NOT NULL REFERENCES fanouts (id) ON DELETE CASCADE,
    device_id text COLLATE "C" NOT NULL,
    reason    text NOT NULL DEFAULT '',
    PRIMARY KEY (fanout_id, device_id)
);

CREATE TABLE snapshots (
    id         uuid PRIMARY KEY,
    device_id  text COLLATE "C" NOT NULL,
    call_id    uuid NOT NULL,
    blob       text NOT NULL CHECK (blob <> ''),
    media_type text NOT NULL CHECK (media_type IN ('image/jpeg', 'image/png')),
    width      integer NOT NULL CHECK (width > 0),
    height     integer NOT NULL CHECK (height > 0),
    size       bigint NOT NULL CHECK (size > 0),
    created_at timestamptz NOT NULL
);
CREATE INDEX snapshots_device ON snapshots (device_id, id DESC);
CREATE INDEX snapshots_call ON snapshots (call_id);
CREATE INDEX snapshots_created ON snapshots (created_at);

CREATE TABLE url_links (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    purpose    text NOT NULL CHECK (purpose IN ('upload', 'preview')),
    device_id  text COLLATE "C" NOT NULL,
    call_id    uuid NOT NULL,
    blob       text NOT NULL,
    media_type text NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz
);
CREATE INDEX url_links_expires ON url_links (expires_at);
