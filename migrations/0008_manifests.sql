-- +goose Up

-- What whoever holds the release key signed about the image, for firmware that
-- takes nothing else. manifest_key is the public key that the signature holds
-- with, in hex, '' if nobody knows; checked says that it is one of fleetd's.
ALTER TABLE images
    ADD COLUMN manifest           text NOT NULL DEFAULT '',
    ADD COLUMN manifest_signature text NOT NULL DEFAULT '',
    ADD COLUMN manifest_key       text NOT NULL DEFAULT '',
    ADD COLUMN manifest_checked   boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT manifest_is_signed CHECK ((manifest = '') = (manifest_signature = '')),
    ADD CONSTRAINT checked_with_key CHECK (manifest_key <> '' OR NOT manifest_checked);

-- How far the device says that the attempt under way is; null if it says nothing.
ALTER TABLE deployments ADD COLUMN percent smallint CHECK (percent BETWEEN 0 AND 100);
