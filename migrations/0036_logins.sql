-- +goose Up

-- Where operators are signed in: a row for each browser, from the sign-in on.
-- Without its row a browser is signed out; rows of the session manager that name
-- none were made before this table, and their operators sign in once more.
CREATE TABLE logins (
    id          uuid PRIMARY KEY,
    operator_id uuid NOT NULL REFERENCES operators (id) ON DELETE CASCADE,
    created_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    address     text NOT NULL,
    agent       text NOT NULL
);
CREATE INDEX logins_operator ON logins (operator_id, seen_at DESC);
CREATE INDEX logins_expiry ON logins (expires_at);

ALTER TABLE operators
    ADD COLUMN signed_in_at timestamptz,
    ADD COLUMN signed_in_from text NOT NULL DEFAULT '';
