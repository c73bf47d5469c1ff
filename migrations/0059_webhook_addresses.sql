-- +goose Up

-- The address of a webhook is a secret of its receiver: whoever has it can post in its name. It is sealed as the
-- webhook's own secret is; what is shown of it is its scheme and host. SQL has no key: addresses from before keep
-- their url until fleetd starts and seals them.
ALTER TABLE webhooks
    ADD COLUMN address bytea, -- sealed
    ADD COLUMN shown text NOT NULL DEFAULT '',
    ALTER COLUMN url DROP NOT NULL,
    ADD CONSTRAINT webhooks_one_address CHECK ((url IS NULL) <> (address IS NULL));

-- Viewers read the audit: its entries keep the host.
UPDATE audit_entries
SET detail = (detail - 'url') || jsonb_build_object('host',
    coalesce(substring(detail->>'url' FROM '^[a-z]+://(?:[^/?#]*@)?([^/?#]*)'), ''))
WHERE action IN ('webhook.create', 'webhook.change') AND detail ? 'url';
