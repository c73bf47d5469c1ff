-- +goose Up

-- What a blank board needs beside its app image, and where in flash. The bytes
-- are in the blob store. A merged binary whose parts do not go together leaves
-- only the problem.
CREATE TABLE image_layouts (
    image      text COLLATE "C" PRIMARY KEY REFERENCES images (sha256) ON DELETE CASCADE,
    flash_size bigint NOT NULL DEFAULT 0,
    problem    text NOT NULL DEFAULT '',
    added_by   jsonb NOT NULL,
    added_at   timestamptz NOT NULL
);

CREATE TABLE image_parts (
    image        text COLLATE "C" NOT NULL REFERENCES image_layouts (image) ON DELETE CASCADE,
    flash_offset bigint NOT NULL CHECK (flash_offset >= 0),
    size         bigint NOT NULL CHECK (size > 0),
    kind         text NOT NULL CHECK (kind IN ('bootloader', 'partition_table', 'otadata', 'app', 'data')),
    label        text NOT NULL DEFAULT '',
    sha256       text COLLATE "C" NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    PRIMARY KEY (image, flash_offset)
);
CREATE INDEX image_parts_sha256 ON image_parts (sha256);
