-- +goose Up

-- Which process serves this database; one row at most. Times are the database's. A process that takes over has the
-- next term; the row of one that stopped in order is released.
CREATE TABLE lease (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    term        integer NOT NULL CHECK (term > 0),
    incarnation uuid NOT NULL,
    node        text NOT NULL,
    host        text NOT NULL,
    pid         integer NOT NULL,
    process     text NOT NULL,
    version     text NOT NULL,
    since       timestamptz NOT NULL,
    renewed_at  timestamptz NOT NULL,
    until       timestamptz NOT NULL,
    released    boolean NOT NULL DEFAULT false
);
