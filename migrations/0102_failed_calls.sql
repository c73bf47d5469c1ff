-- +goose Up

-- Failed calls of one principal, or of one tool: where such calls are rare, the index of all failures reads the
-- failures of everybody. Few calls fail, so few are in these.
CREATE INDEX calls_actor_failures ON calls (actor_name, id DESC) WHERE failure IS NOT NULL;
CREATE INDEX calls_tool_failures ON calls (tool, id DESC) WHERE failure IS NOT NULL;
