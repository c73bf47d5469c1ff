-- +goose Up

-- The ordered table of rules that judges every call: the first one that applies
-- decides. An empty condition holds for every call; positions are dense, from 0.
CREATE TABLE policies (
    id              uuid PRIMARY KEY,
    position        integer NOT NULL CHECK (position >= 0),
    name            text NOT NULL CHECK (name <> ''),
    enabled         boolean NOT NULL,
    fixed           boolean NOT NULL DEFAULT false,
    kinds           text[] NOT NULL DEFAULT '{}'
        CHECK (kinds <@ ARRAY['operator', 'program', 'model', 'voice', 'campaign', 'system']),
    roles           text[] NOT NULL DEFAULT '{}' CHECK (roles <@ ARRAY['viewer', 'operator', 'admin']),
    names           text[] NOT NULL DEFAULT '{}', -- patterns
    tools           text[] NOT NULL DEFAULT '{}', -- patterns
    audience        text NOT NULL DEFAULT '' CHECK (audience IN ('', 'model', 'user')),
    effects         text[] NOT NULL DEFAULT '{}' CHECK (effects <@ ARRAY['restarts', 'leaves_network']),
    devices         text NOT NULL DEFAULT '', -- query
    arguments       json,                     -- JSON schema
    window_cron     text,
    window_ms       bigint CHECK (window_ms > 0),
    window_zone     text,
    decision        text NOT NULL CHECK (decision IN ('allow', 'deny', 'require_approval')),
    note            text NOT NULL DEFAULT '',
    approval_ttl_ms bigint NOT NULL DEFAULT 0 CHECK (approval_ttl_ms >= 0),
    rate_per_minute integer NOT NULL DEFAULT 0 CHECK (rate_per_minute >= 0), -- 0: any number
    daily_budget    integer NOT NULL DEFAULT 0 CHECK (daily_budget >= 0),    -- 0: any number
    updated_by      text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT fixed_is_enabled CHECK (enabled OR NOT fixed),
    CONSTRAINT window_is_whole CHECK ((window_cron IS NULL) = (window_ms IS NULL)
        AND (window_cron IS NULL) = (window_zone IS NULL)),
    CONSTRAINT denial_has_no_limit CHECK (decision <> 'deny' OR rate_per_minute + daily_budget = 0)
);

-- Each change of the table makes the next version. An approval is good for one.
CREATE TABLE policy_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL CHECK (version > 0)
);
INSERT INTO policy_version (version) VALUES (1);

-- What holds from the start, and has held so far.
INSERT INTO policies (id, position, name, enabled, fixed, kinds, roles, audience, effects, decision) VALUES
    ('00000000-0000-7000-8000-000000000001', 0, 'Models never call user-only tools', true, true,
        '{model,voice}', '{}', 'user', '{}', 'deny'),
    ('00000000-0000-7000-8000-000000000002', 1, 'Restarts need an operator', true, false,
        '{operator,program}', '{viewer}', '', '{restarts,leaves_network}', 'deny');
