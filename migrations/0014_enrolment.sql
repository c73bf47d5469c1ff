-- +goose Up

-- Rules by which devices join without an operator, in the order of position:
-- the first that fits decides. An empty array does not narrow.
CREATE TABLE enrolment_rules (
    id          uuid PRIMARY KEY,
    position    integer NOT NULL CHECK (position >= 0),
    name        text NOT NULL CHECK (name <> ''),
    enabled     boolean NOT NULL,
    action      text NOT NULL CHECK (action IN ('accept', 'refuse')),
    boards      text[] NOT NULL,
    networks    cidr[] NOT NULL,
    devices     text[] NOT NULL,
    from_at     timestamptz,
    until_at    timestamptz,
    max_devices integer NOT NULL CHECK (max_devices >= 0), -- 0: any number
    tags        text[] NOT NULL,
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT window_is_open CHECK (from_at IS NULL OR until_at IS NULL OR from_at < until_at)
);

-- Which device a rule let in. It outlives the rule.
CREATE TABLE enrolment_acceptances (
    id        uuid PRIMARY KEY,
    rule_id   uuid NOT NULL,
    device_id text COLLATE "C" NOT NULL REFERENCES devices (id),
    at        timestamptz NOT NULL
);
CREATE INDEX enrolment_acceptances_rule ON enrolment_acceptances (rule_id);

-- Whom a unit replaced: its page leads there.
CREATE INDEX devices_replaced_by ON devices (replaced_by) WHERE replaced_by IS NOT NULL;
