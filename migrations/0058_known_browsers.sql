-- +goose Up

-- Browsers in which an operator was signed in: their tries to sign in are counted alone, so that others who guess do
-- not lock the operator out. The browser has the secret in a cookie, which each sign-in replaces; its hash is here.
CREATE TABLE known_browsers (
    id          uuid PRIMARY KEY,
    operator_id uuid NOT NULL REFERENCES operators (id) ON DELETE CASCADE,
    hash        bytea NOT NULL UNIQUE, -- SHA-256
    expires_at  timestamptz NOT NULL
);
CREATE INDEX known_browsers_operator ON known_browsers (operator_id);
CREATE INDEX known_browsers_expiry ON known_browsers (expires_at);

-- When the password was last entered in the session: some acts ask for it again.
ALTER TABLE logins
    ADD COLUMN confirmed_at timestamptz,
    ADD COLUMN browser_id uuid REFERENCES known_browsers (id) ON DELETE SET NULL;
UPDATE logins SET confirmed_at = created_at;
ALTER TABLE logins ALTER COLUMN confirmed_at SET NOT NULL;
CREATE INDEX logins_browser ON logins (browser_id);
