-- +goose Up

-- plan is json, not jsonb: what was approved is kept to the letter, the
-- arguments of its health checks included.
CREATE TABLE campaigns (
    id              uuid PRIMARY KEY,
    name            text NOT NULL,
    release_id      uuid REFERENCES releases (id), -- null for a rollback
    plan            json NOT NULL,
    state           text COLLATE "C" NOT NULL CHECK (state IN ('draft', 'awaiting_approval', 'denied', 'discarded', 'scheduled', 'running',
        'paused', 'stopping', 'completed', 'completed_with_errors', 'aborted', 'expired')),
    pause_reason    text NOT NULL DEFAULT '' CHECK (pause_reason IN ('', 'operator', 'window', 'threshold', 'gate', 'system')),
    reason          text NOT NULL DEFAULT '',
    wave            integer NOT NULL DEFAULT 0 CHECK (wave >= 0),
    advance         boolean NOT NULL DEFAULT false,
    digest          text NOT NULL DEFAULT '',
    targets         integer NOT NULL DEFAULT 0 CHECK (targets >= 0),
    skipped         integer NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    approval        json,
    rollback_of     uuid REFERENCES campaigns (id),
    rollback_wanted boolean NOT NULL DEFAULT false,
    rollback_with   uuid REFERENCES campaigns (id),
    created_by      jsonb NOT NULL,
    created_at      timestamptz NOT NULL,
    edited_by       jsonb NOT NULL,
    edited_at       timestamptz NOT NULL,
    started_by      jsonb,
    started_at      timestamptz,
    finished_at     timestamptz,
    overruled       integer NOT NULL DEFAULT 0,
    revision        bigint NOT NULL DEFAULT 1
);
CREATE INDEX campaigns_newest ON campaigns (created_at DESC, id DESC);
CREATE INDEX campaigns_release ON campaigns (release_id);
CREATE INDEX campaigns_open ON campaigns (created_at) WHERE state IN ('scheduled', 'running', 'paused', 'stopping');

CREATE TABLE waves (
    campaign_id uuid NOT NULL REFERENCES campaigns (id),
    number      integer NOT NULL CHECK (number >= 0),
    plan        json NOT NULL,
    size        integer NOT NULL CHECK (size >= 0),
    state       text NOT NULL CHECK (state IN ('pending', 'running', 'soaking', 'gate', 'finished', 'failed')),
    verdict     text NOT NULL DEFAULT '',
    started_at  timestamptz,
    finished_at timestamptz,
    PRIMARY KEY (campaign_id, number)
);

-- The images that a campaign's deployments name: a short list that keeps them
-- from being deleted, in place of an index over millions of deployments.
CREATE TABLE campaign_images (
    campaign_id uuid NOT NULL REFERENCES campaigns (id),
    image       text COLLATE "C" NOT NULL REFERENCES images (sha256),
    PRIMARY KEY (campaign_id, image)
);
CREATE INDEX campaign_images_image ON campaign_images (image);

-- One row per campaign and device. reached is the furthest step of the funnel
-- that the latest attempt has evidence of, as an index: 0 planned, 1 told,
-- 2 get, 3 downloaded, 4 goodbye, 5 boot_poll, 6 initialize, 7 succeeded.
--
-- Columns that progress is counted by come first. Progress of a download
-- changes no indexed column, and pages keep room for it (HOT). Every row is
-- written some ten times within an hour: vacuum comes early.
CREATE TABLE deployments (
    id           uuid PRIMARY KEY,
    campaign_id  uuid NOT NULL REFERENCES campaigns (id),
    wave         integer NOT NULL CHECK (wave >= -1),
    reached      smallint NOT NULL DEFAULT 0 CHECK (reached BETWEEN 0 AND 7),
    late         boolean NOT NULL DEFAULT false,
    state        text COLLATE "C" NOT NULL CHECK (state IN ('pending', 'queued', 'offered', 'dispatching', 'sent', 'ambiguous', 'downloading',
        'downloaded', 'rebooting', 'booted', 'verifying', 'succeeded', 'failed', 'timed_out', 'rolled_back', 'wrong_build', 'unhealthy',
        'rejected', 'skipped', 'canceled', 'expired', 'aborted', 'removed')),
    skip         text COLLATE "C" NOT NULL DEFAULT '',
    class        text COLLATE "C" NOT NULL DEFAULT '' CHECK (class IN ('', 'download', 'timeout', 'busy', 'image', 'rejected', 'rolled_back',
        'wrong_build', 'unhealthy')),
    board        text COLLATE "C" NOT NULL DEFAULT '',
    device_id    text COLLATE "C" NOT NULL CHECK (device_id <> ''),

    force        boolean NOT NULL DEFAULT false,
    booted       boolean NOT NULL DEFAULT false,
    away         boolean NOT NULL DEFAULT false,
    checked      boolean NOT NULL DEFAULT false,
    probed       boolean NOT NULL DEFAULT false,
    attempt      integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures     integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    offers       integer NOT NULL DEFAULT 0 CHECK (offers >= 0),
    reconnects   integer NOT NULL DEFAULT 0 CHECK (reconnects >= 0),
    image_size   bigint NOT NULL DEFAULT 0,
    bytes_sent   bigint NOT NULL DEFAULT 0 CHECK (bytes_sent >= 0),
    revision     bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    not_before   timestamptz,
    deadline     timestamptz,
    sent_at      timestamptz,
    get_at       timestamptz,
    finished_at  timestamptz,
    image        text COLLATE "C", -- null if skipped for want of one
    target_elf   text COLLATE "C" NOT NULL DEFAULT '',
    to_version   text NOT NULL DEFAULT '',
    from_elf     text COLLATE "C" NOT NULL DEFAULT '',
    from_version text NOT NULL DEFAULT '',
    reason       text NOT NULL DEFAULT '',
    baseline     json,

    CONSTRAINT deployments_target UNIQUE (campaign_id, device_id),
    CONSTRAINT deployments_image FOREIGN KEY (campaign_id, image) REFERENCES campaign_images (campaign_id, image),
    CONSTRAINT final_is_finished CHECK ((finished_at IS NULL) = (state IN ('pending', 'queued', 'offered', 'dispatching', 'sent', 'ambiguous',
        'downloading', 'downloaded', 'rebooting', 'booted', 'verifying'))),
    CONSTRAINT skipped_has_reason CHECK (CASE state WHEN 'skipped' THEN skip <> '' WHEN 'canceled' THEN true ELSE skip = '' END),
    CONSTRAINT target_has_image CHECK (image IS NOT NULL OR state = 'skipped'),
    CONSTRAINT target_has_wave CHECK (wave >= 0 OR state = 'skipped')
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- A device has at most one active deployment, over all campaigns.
CREATE UNIQUE INDEX deployments_one_active ON deployments (device_id)
    WHERE state IN ('offered', 'dispatching', 'sent', 'ambiguous', 'downloading', 'downloaded', 'rebooting', 'booted', 'verifying');
CREATE INDEX deployments_device ON deployments (device_id, created_at DESC);
CREATE INDEX deployments_state ON deployments (campaign_id, state);

-- What was observed of a deployment, and the transition it led to. Rows are
-- only ever added.
CREATE TABLE deployment_events (
    deployment_id uuid NOT NULL REFERENCES deployments (id),
    seq           bigint GENERATED ALWAYS AS IDENTITY,
    id            uuid NOT NULL,
    at            timestamptz NOT NULL,
    attempt       integer NOT NULL,
    kind          text COLLATE "C" NOT NULL CHECK (kind <> ''),
    from_state    text COLLATE "C" NOT NULL,
    to_state      text COLLATE "C" NOT NULL,
    detail        text NOT NULL DEFAULT '',
    PRIMARY KEY (deployment_id, seq)
);

-- The address of an attempt's image, good for one whole download.
CREATE TABLE firmware_links (
    token_hash    bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    deployment_id uuid NOT NULL REFERENCES deployments (id),
    campaign_id   uuid NOT NULL,
    device_id     text COLLATE "C" NOT NULL,
    attempt       integer NOT NULL,
    image         text COLLATE "C" NOT NULL,
    size          bigint NOT NULL CHECK (size > 0),
    expires_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    finished_at   timestamptz
);
CREATE INDEX firmware_links_deployment ON firmware_links (deployment_id);
CREATE INDEX firmware_links_expires ON firmware_links (expires_at);

-- Devices that failed too often, the latest time of each. One that was cleared
-- stays for a while: failures before that do not count again.
CREATE TABLE quarantines (
    device_id  text COLLATE "C" PRIMARY KEY,
    reason     text NOT NULL,
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    cleared_at timestamptz
);
CREATE INDEX quarantines_until ON quarantines (until);
