-- +goose Up

-- The pictures of a device, newest first, of all kinds or of one.
CREATE INDEX snapshots_newest ON snapshots (device_id, created_at DESC, id DESC);
CREATE INDEX snapshots_kind ON snapshots (device_id, kind, created_at DESC, id DESC);

-- The sweep of the blob store looks for the rows that name a blob. Most of these name none.
CREATE INDEX url_links_blob ON url_links (blob) WHERE blob <> '';
CREATE INDEX approvals_picture ON approvals (picture) WHERE picture <> '';
CREATE INDEX call_waits_picture ON call_waits (picture) WHERE picture <> '';
