-- +goose Up

-- Whose figures are counted: the fleet, the devices of a board, version or tag, and those that match a query, which is
-- the text of a saved filter or of a scope. since is the beginning of its first counted hour. last_wanted is when it
-- last had devices or, of a query, when a filter or scope last had that text.
CREATE TABLE trend_groups (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('fleet', 'board', 'version', 'tag', 'query')),
    value       text COLLATE "C" NOT NULL,
    since       timestamptz NOT NULL,
    last_wanted timestamptz NOT NULL,
    UNIQUE (kind, value)
);

-- The figures of an hour: of each metric the counts by key, as parallel arrays. The key U+0001 has the sum of the keys
-- beyond the largest. A metric of states is counted at the end of the hour, one of events within it. A metric of states
-- without a row is unknown; one of events without a row is zero, if the hour is counted.
--
-- The unit of counting is an hour: its rows are replaced together. An interrupted run therefore neither loses an event
-- nor counts one twice.
CREATE TABLE trend_hours (
    group_id integer NOT NULL,
    metric   text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    keys     text[] NOT NULL,
    counts   bigint[] NOT NULL,
    PRIMARY KEY (group_id, metric, at),
    CHECK (cardinality(keys) = cardinality(counts))
);
CREATE INDEX trend_hours_at ON trend_hours (at);

-- The sums of the hours of a day (UTC), and how many hours have a row. A day is added up again with each of its hours.
CREATE TABLE trend_days (LIKE trend_hours INCLUDING CONSTRAINTS);
ALTER TABLE trend_days ADD COLUMN hours integer NOT NULL CHECK (hours > 0);
ALTER TABLE trend_days ADD PRIMARY KEY (group_id, metric, at);
CREATE INDEX trend_days_at ON trend_days (at);

-- How far the counting of each hour is: due; counted, until its calls are final and are counted a second time; done.
-- skipped hours have no records any more.
CREATE TABLE trend_marks (
    hour  timestamptz PRIMARY KEY,
    state text NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'counted', 'done', 'skipped')),
    calls bigint NOT NULL DEFAULT 0
);
CREATE INDEX trend_marks_open ON trend_marks (hour) WHERE state IN ('due', 'counted');
