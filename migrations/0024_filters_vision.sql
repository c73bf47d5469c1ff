-- +goose Up

-- Device queries with a name.
CREATE TABLE filters (
    id         uuid PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$'),
    title      text NOT NULL,
    query      text NOT NULL CHECK (query <> ''),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL
);

-- A snapshot is a picture of a screen, or one that a camera took to answer a
-- question. A camera can send one when no call runs on its device: then call_id
-- is the zero UUID.
ALTER TABLE snapshots
    ADD COLUMN kind     text NOT NULL DEFAULT 'screen' CHECK (kind IN ('screen', 'camera')),
    ADD COLUMN question text NOT NULL DEFAULT '';
