-- +goose Up

-- Where firmware goes on a device, as its latest boot poll that told said; and
-- an operator's word on where the device stands.
ALTER TABLE devices
    ADD COLUMN time_zone        text NOT NULL DEFAULT '',
    ADD COLUMN ota_slot_size    bigint,
    ADD COLUMN partition_labels text[],
    ADD COLUMN chip_rev         integer,
    ADD COLUMN free_heap        bigint,
    ADD COLUMN flash_bytes      bigint,
    ADD CONSTRAINT layout_is_whole CHECK (num_nulls(ota_slot_size, partition_labels, chip_rev, free_heap, flash_bytes) IN (0, 5));

-- What the bytes say of themselves, and what operators say of them. The bytes
-- are in the blob store. Actors are {"Kind", "ID", "Name", "Role"}.
CREATE TABLE images (
    sha256         text COLLATE "C" PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size           bigint NOT NULL CHECK (size > 0),
    file_name      text NOT NULL DEFAULT '',
    board          text COLLATE "C" NOT NULL DEFAULT '',
    notes          text NOT NULL DEFAULT '',
    chip           text COLLATE "C" NOT NULL,
    version        text COLLATE "C" NOT NULL,
    project        text NOT NULL DEFAULT '',
    idf_version    text NOT NULL DEFAULT '',
    elf_sha256     text COLLATE "C" NOT NULL DEFAULT '',
    compiled_at    text NOT NULL DEFAULT '',
    secure_version bigint NOT NULL DEFAULT 0,
    min_chip_rev   integer NOT NULL DEFAULT 0,
    max_chip_rev   integer NOT NULL DEFAULT 65535,
    flash_size     bigint NOT NULL DEFAULT 0,
    merged_binary  boolean NOT NULL DEFAULT false,
    signatures     jsonb,
    not_offerable  text NOT NULL DEFAULT '',
    uploaded_by    jsonb NOT NULL,
    created_at     timestamptz NOT NULL,
    revoked_at     timestamptz,
    revoked_by     text NOT NULL DEFAULT '',
    revoke_reason  text NOT NULL DEFAULT '',
    UNIQUE (sha256, chip, board)
);
CREATE INDEX images_newest ON images (created_at DESC, sha256 DESC);
CREATE INDEX images_elf ON images (elf_sha256);

CREATE TABLE releases (
    id         uuid PRIMARY KEY,
    version    text NOT NULL,
    notes      text NOT NULL DEFAULT '',
    state      text NOT NULL CHECK (state IN ('draft', 'released', 'deprecated', 'revoked')),
    created_by jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    reason     text NOT NULL DEFAULT ''
);
CREATE INDEX releases_newest ON releases (created_at DESC, id DESC);

-- One image per chip and board. Both follow the image when an operator corrects
-- its board.
CREATE TABLE release_images (
    release_id uuid NOT NULL REFERENCES releases (id),
    image      text COLLATE "C" NOT NULL,
    chip       text COLLATE "C" NOT NULL,
    board      text COLLATE "C" NOT NULL,
    PRIMARY KEY (release_id, image),
    CONSTRAINT release_images_board UNIQUE (release_id, chip, board),
    CONSTRAINT release_images_known FOREIGN KEY (image, chip, board) REFERENCES images (sha256, chip, board) ON UPDATE CASCADE
);
CREATE INDEX release_images_image ON release_images (image);
