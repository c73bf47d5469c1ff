-- +goose Up

-- Failed tries to guess a password or a code, so that a restart or a new leader allows no more tries. The
-- subject is a keyed digest. tries falls by one in each_s seconds since at, which is the database's time.
CREATE TABLE failed_tries (
    bound   text NOT NULL,
    subject bytea NOT NULL,
    each_s  double precision NOT NULL CHECK (each_s > 0),
    tries   double precision NOT NULL CHECK (tries >= 0),
    at      timestamptz NOT NULL,
    PRIMARY KEY (bound, subject)
);
