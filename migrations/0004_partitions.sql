-- +goose Up

-- ensure_partition gives a partitioned table its partition for one month (UTC).
-- Rows of that month that fell into the default partition meanwhile move over,
-- so that a late start of this never loses or blocks anything.
-- +goose StatementBegin
CREATE FUNCTION ensure_partition(parent text, month date, storage text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    part  text := parent || to_char(month, '"_"YYYY"_"MM');
    lower timestamptz := date_trunc('month', month::timestamp) AT TIME ZONE 'UTC';
    upper timestamptz := (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %I IN SHARE UPDATE EXCLUSIVE MODE', parent);
    IF to_regclass(part) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL) WITH (%s)', part, parent, storage);
    EXECUTE format('WITH moved AS (DELETE FROM %I WHERE created_at >= %L AND created_at < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
        parent || '_default', lower, upper, part);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, lower, upper);
    RETURN true;
END $$;
-- +goose StatementEnd

-- ensure_partitions makes this month's partitions and those of the next two.
-- An outcome makes a call's row longer, and is written soon after the row: half
-- of each page is kept for that.
-- +goose StatementBegin
CREATE FUNCTION ensure_partitions(now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    first date := date_trunc('month', now AT TIME ZONE 'UTC')::date;
    made  integer := 0;
BEGIN
    FOR i IN 0..2 LOOP
        made := made + ensure_partition('calls', (first + make_interval(months => i))::date, 'fillfactor = 50')::int;
        made := made + ensure_partition('audit_entries', (first + make_interval(months => i))::date, 'fillfactor = 100')::int;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

-- drop_partitions_before drops the months that lie wholly before the cutoff.
-- It waits for nobody long: the caller tries again.
-- +goose StatementBegin
CREATE FUNCTION drop_partitions_before(parent text, cutoff timestamptz) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    part    text;
    dropped integer := 0;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = parent::regclass AND c.relname ~ '_\d{4}_\d{2}$'
        AND (to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' <= cutoff
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
-- +goose StatementEnd

SELECT ensure_partitions(now());
