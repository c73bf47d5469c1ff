-- +goose Up

-- The fan-out whose failed devices this one calls again.
ALTER TABLE fanouts ADD COLUMN retry_of uuid;
