-- +goose Up

-- Hashes cannot be compressed, and rows of the queue live for a second: PostgreSQL shall neither try to compress them
-- nor move them out of line. It considers both for rows of more than 2 kB.
ALTER TABLE record_queue ALTER COLUMN leaves SET STORAGE EXTERNAL;
ALTER TABLE record_queue SET (toast_tuple_target = 8160);

-- Keys consist of random ids and times. Compressing them took 1.5 % of PostgreSQL's time under a load of calls.
ALTER TABLE record_batches ALTER COLUMN keys SET STORAGE EXTERNAL;
