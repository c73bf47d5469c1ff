-- +goose Up

-- The least version that devices with a board may get. set_by is {"Kind", "ID",
-- "Name", "Role"}.
CREATE TABLE board_floors (
    board   text COLLATE "C" PRIMARY KEY CHECK (board <> ''),
    version text COLLATE "C" NOT NULL CHECK (version <> ''),
    set_by  jsonb NOT NULL,
    set_at  timestamptz NOT NULL
);
