-- +goose Up

-- What the digest of a plan covers besides the rows of its devices. images are
-- those that its devices may get, in order; null for a campaign of an earlier
-- version, whose rows are not held against its digest. planned is the plan as
-- the digest has it, once plan was changed while the campaign ran; else null.
ALTER TABLE campaigns
    ADD COLUMN images  text[] COLLATE "C",
    ADD COLUMN planned json;

-- Joined a continuous campaign while it ran: the digest names its image, and
-- not the device.
ALTER TABLE deployments ADD COLUMN joined boolean NOT NULL DEFAULT false;
