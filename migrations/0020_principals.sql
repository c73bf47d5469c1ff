-- +goose Up

-- A principal is an operator, a program, a model, a voice server, a campaign or
-- the system. What tokens did was recorded as done by a "token".
UPDATE audit_entries SET actor_kind = 'program' WHERE actor_kind = 'token';
UPDATE calls SET actor_kind = 'program' WHERE actor_kind = 'token';

-- A scope is a filter of devices. Outside of it an operator has the role rest;
-- '' hides what is outside, as it always is for a token.
ALTER TABLE operators
    ADD COLUMN scope text NOT NULL DEFAULT '',
    ADD COLUMN rest  text NOT NULL DEFAULT '' CHECK (rest IN ('', 'viewer', 'operator', 'admin'));
ALTER TABLE tokens
    ADD COLUMN kind       text NOT NULL DEFAULT 'program' CHECK (kind IN ('program', 'model')),
    ADD COLUMN scope      text NOT NULL DEFAULT '',
    ADD COLUMN tools      text[] NOT NULL DEFAULT '{}',
    ADD COLUMN per_minute integer NOT NULL DEFAULT 0 CHECK (per_minute >= 0);
