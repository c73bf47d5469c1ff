-- +goose Up

-- The tools of a plug-in or an endpoint as fleetd trusts them: those that the server listed first
-- with this name, version and build, and those that an administrator released since. tools maps
-- their names to digests, in hex.
CREATE TABLE trusted_tools (
    device_id      text COLLATE "C" PRIMARY KEY REFERENCES devices (id),
    server_name    text NOT NULL,
    server_version text NOT NULL,
    build          text NOT NULL,
    definition     text NOT NULL,
    tools          jsonb NOT NULL
);

-- Tools that changed although name, version and build did not. Language models may not call them.
-- trusted is null for a tool that was not in the trusted list.
CREATE TABLE tool_quarantines (
    device_id text COLLATE "C" NOT NULL REFERENCES devices (id),
    tool      text COLLATE "C" NOT NULL CHECK (tool <> ''),
    trusted   bytea CHECK (octet_length(trusted) = 32),
    digest    bytea NOT NULL CHECK (octet_length(digest) = 32),
    since     timestamptz NOT NULL,
    PRIMARY KEY (device_id, tool)
);
