-- +goose Up

-- Which process held the lease in which term. The statement that replaces the lease adds the row, and deletes the
-- oldest ones. Times are the database's.
CREATE TABLE lease_terms (
    term        integer PRIMARY KEY CHECK (term > 0),
    incarnation uuid NOT NULL,
    node        text NOT NULL,
    host        text NOT NULL,
    version     text NOT NULL,
    since       timestamptz NOT NULL,
    reason      text NOT NULL CHECK (reason IN ('first', 'released', 'silent', 'gone')),
    ended       timestamptz
);
