-- +goose Up

-- Calls to many devices that are repeated. next_planned_at is the next instant, and next_due_at the time at
-- which its run starts; both are null while the schedule is paused, and after the last instant. terms are the
-- terms of the audience's query: a principal that is limited to some devices sees the schedule if they
-- contain those of its filter. version counts the changes by people and programs.
CREATE TABLE schedules (
    id              uuid PRIMARY KEY,
    name            text NOT NULL,
    cron            text NOT NULL,
    time_zone       text NOT NULL,
    query           text NOT NULL,
    within          text NOT NULL,
    terms           text[] NOT NULL,
    tool            text NOT NULL,
    arguments       json NOT NULL,
    jitter_ms       bigint NOT NULL CHECK (jitter_ms >= 0),
    start_at        timestamptz,
    end_at          timestamptz CHECK (end_at > start_at),
    max_in_flight   int NOT NULL CHECK (max_in_flight > 0),
    timeout_ms      bigint NOT NULL CHECK (timeout_ms >= 0),
    offline_wait_ms bigint NOT NULL CHECK (offline_wait_ms >= 0),
    paused          boolean NOT NULL,
    paused_by       text NOT NULL,
    note            text NOT NULL,
    actor_kind      text NOT NULL,
    actor_id        text NOT NULL,
    actor_name      text NOT NULL,
    actor_role      text NOT NULL,
    created_by      text NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    version         bigint NOT NULL,
    next_planned_at timestamptz,
    next_due_at     timestamptz CHECK (next_due_at >= next_planned_at),
    blocked_code    text NOT NULL DEFAULT '',
    blocked_params  jsonb,
    CHECK ((next_planned_at IS NULL) = (next_due_at IS NULL)),
    CHECK (NOT paused OR next_planned_at IS NULL)
);
CREATE INDEX schedules_due ON schedules (next_due_at) WHERE next_due_at IS NOT NULL;

-- The runs: one for an instant at most. The fan-out of a run has the id that the run was stored with, so that
-- a start which a crash interrupted makes no second one. A run in the state running has ended if its fan-out
-- has; the next run stores that.
CREATE TABLE schedule_runs (
    id          uuid PRIMARY KEY,
    schedule_id uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    planned_at  timestamptz NOT NULL,
    due_at      timestamptz NOT NULL,
    started_at  timestamptz,
    state       text NOT NULL CHECK (state IN ('starting', 'running', 'done', 'refused', 'missed', 'skipped')),
    manual      boolean NOT NULL,
    actor_kind  text NOT NULL,
    actor_id    text NOT NULL,
    actor_name  text NOT NULL,
    actor_role  text NOT NULL,
    fanout_id   uuid,
    code        text NOT NULL DEFAULT '',
    params      jsonb,
    omitted     bigint NOT NULL DEFAULT 0,
    UNIQUE (schedule_id, planned_at)
);
CREATE INDEX schedule_runs_open ON schedule_runs (schedule_id) WHERE state IN ('starting', 'running');
CREATE INDEX schedule_runs_planned ON schedule_runs (planned_at);
