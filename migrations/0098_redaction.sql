-- +goose Up

-- Values at these paths in the arguments of calls are stored as keyed digests.
CREATE TABLE redactions (
    id         uuid PRIMARY KEY,
    tool       text COLLATE "C" NOT NULL CHECK (tool <> ''), -- pattern
    path       text COLLATE "C" NOT NULL CHECK (path LIKE '$%'),
    note       text NOT NULL,
    revision   bigint NOT NULL CHECK (revision > 0),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL,
    UNIQUE (tool, path)
);

-- Each change of the table makes the next version.
CREATE TABLE redaction_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL CHECK (version > 0)
);
INSERT INTO redaction_version (version) VALUES (1);

-- Which calls have which digests. created_at is that of the call, and leads to its partition.
CREATE TABLE call_digests (
    digest     bytea NOT NULL CHECK (octet_length(digest) = 16),
    call_id    uuid NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (digest, call_id)
);
CREATE INDEX call_digests_created ON call_digests (created_at);

-- The true arguments, encrypted, of what has digests in its arguments and is still to be sent.
ALTER TABLE calls
    ADD COLUMN sealed_arguments bytea,
    ADD CONSTRAINT ended_has_nothing_sealed CHECK (sealed_arguments IS NULL OR finished_at IS NULL) NOT VALID;
ALTER TABLE fanouts
    ADD COLUMN sealed_arguments bytea,
    ADD CONSTRAINT ended_has_nothing_sealed CHECK (sealed_arguments IS NULL OR finished_at IS NULL) NOT VALID;
ALTER TABLE schedules ADD COLUMN sealed_arguments bytea;
