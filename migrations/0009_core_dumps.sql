-- +goose Up

-- What crashes left behind, as devices uploaded it. The bytes are in the blob
-- store; they go when the last row that names them goes.
CREATE TABLE core_dumps (
    id           uuid PRIMARY KEY,
    device_id    text COLLATE "C" NOT NULL,
    call_id      uuid NOT NULL,
    blob         text COLLATE "C" NOT NULL CHECK (blob <> ''),
    size         bigint NOT NULL CHECK (size > 0),
    summary      text NOT NULL,
    elf_sha256   text COLLATE "C" NOT NULL,
    version      text NOT NULL,
    build_from   text NOT NULL CHECK (build_from IN ('', 'core_dump', 'device')),
    reset_reason text NOT NULL,
    boots        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    CONSTRAINT source_of_build CHECK ((build_from = '') = (elf_sha256 = '')),
    CONSTRAINT core_dump_once UNIQUE (device_id, blob, boots)
);
CREATE INDEX core_dumps_device ON core_dumps (device_id, id DESC);
CREATE INDEX core_dumps_created ON core_dumps (created_at);
CREATE INDEX core_dumps_blob ON core_dumps (blob);
CREATE INDEX snapshots_blob ON snapshots (blob);

ALTER TABLE url_links
    DROP CONSTRAINT url_links_purpose_check,
    ADD CONSTRAINT url_links_purpose_check CHECK (purpose IN ('upload', 'preview', 'core_dump'));
