-- +goose Up

-- Why a fan-out was canceled that nobody canceled: who made it may not act any more.
ALTER TABLE fanouts ADD COLUMN code text NOT NULL DEFAULT '';
