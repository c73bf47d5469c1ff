-- +goose Up

-- Keys that lists compare and sort by are lower-cased in Go and ordered by
-- byte, so that SQL and the rules in package fleet agree whatever the
-- database's locale is.

CREATE TABLE operators (
    id            uuid PRIMARY KEY,
    name          text NOT NULL CHECK (name <> ''),
    name_key      text COLLATE "C" NOT NULL UNIQUE,
    role          text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    password_hash text NOT NULL,
    locale        text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL,
    disabled_at   timestamptz
);

-- Sign-ins to the console, kept by the session manager.
CREATE TABLE sessions (
    token  text PRIMARY KEY,
    data   bytea NOT NULL,
    expiry timestamptz NOT NULL
);
CREATE INDEX sessions_expiry ON sessions (expiry);

CREATE TABLE tokens (
    id           uuid PRIMARY KEY,
    name         text NOT NULL CHECK (name <> ''),
    role         text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash         bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    hint         text NOT NULL,
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    expires_at   timestamptz,
    revoked_at   timestamptz
);

CREATE TABLE settings (
    key   text PRIMARY KEY,
    value jsonb NOT NULL
);

-- A request that acts names a key; the same key again gets the saved response.
-- status is null while the first request is at work.
CREATE TABLE idempotency_keys (
    actor        text NOT NULL,
    key          text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    request_hash bytea NOT NULL,
    status       integer,
    body         bytea,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (actor, key)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at);

-- Version 7 ids: their order is the order of time.
CREATE TABLE audit_entries (
    id         uuid NOT NULL,
    created_at timestamptz NOT NULL,
    actor_kind text NOT NULL,
    actor_id   text NOT NULL,
    actor_name text NOT NULL,
    actor_role text NOT NULL,
    action     text NOT NULL,
    subject    text NOT NULL,
    detail     jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX audit_entries_subject ON audit_entries (subject, id DESC);
CREATE INDEX audit_entries_action ON audit_entries (action, id DESC);
CREATE INDEX audit_entries_actor ON audit_entries (actor_name, id DESC);
CREATE TABLE audit_entries_default PARTITION OF audit_entries DEFAULT;
