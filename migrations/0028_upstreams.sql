-- +goose Up

-- Voice servers in their order: the first one that is enabled and whose device
-- query fits is the one a device talks to. One of the kind none leaves its devices
-- without voice. Positions are dense, from 0.
CREATE TABLE upstreams (
    id         uuid PRIMARY KEY,
    position   integer NOT NULL CHECK (position >= 0),
    name       text NOT NULL CHECK (name <> ''),
    kind       text NOT NULL CHECK (kind IN ('websocket', 'ota', 'none')),
    url        text NOT NULL,
    auth       text NOT NULL CHECK (auth IN ('none', 'secret', 'token')),
    secret     bytea,         -- sealed
    devices    text NOT NULL, -- query; empty: any device
    tools      boolean NOT NULL,
    enabled    boolean NOT NULL,
    updated_by text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT none_has_no_address CHECK ((kind = 'none') = (url = '')),
    CONSTRAINT auth_has_secret CHECK ((auth = 'none') = (secret IS NULL)),
    CONSTRAINT only_websockets_have_auth CHECK (kind = 'websocket' OR auth = 'none')
);

-- Each change of the table makes the next version.
CREATE TABLE upstream_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL CHECK (version > 0)
);
INSERT INTO upstream_version (version) VALUES (1);

-- What the OTA address of a voice server answered for a device: where to connect,
-- and the code that a person enters at the voice server to bind the device to an
-- account.
CREATE TABLE upstream_accounts (
    upstream_id uuid NOT NULL REFERENCES upstreams ON DELETE CASCADE,
    device_id   text COLLATE "C" NOT NULL CHECK (device_id <> ''),
    ota_url     text NOT NULL,  -- that was asked
    client_id   text NOT NULL,  -- of the device, when it was asked
    url         text NOT NULL,  -- of the WebSocket; empty: none was answered
    token       bytea,          -- sealed; null: none
    code        text NOT NULL,  -- empty: the device is bound, or the server binds none
    message     text NOT NULL,
    challenge   text NOT NULL,
    asked_at    timestamptz NOT NULL, -- when it last answered
    PRIMARY KEY (upstream_id, device_id)
);
CREATE INDEX upstream_accounts_device ON upstream_accounts (device_id);
