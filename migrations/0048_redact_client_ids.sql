-- +goose Up

-- Whoever knows a device's Client-Id can poll in its place and be given its
-- credentials. Devices say it (self.get_system_info answers it as "uuid"), and what
-- they say is shown to viewers and models. New text comes without it; this takes it
-- out of what is stored.
--
-- client_id_pattern matches a Client-Id with its dashes or without them. Null of
-- one that is too short to be a secret, or that might be a number.
CREATE FUNCTION pg_temp.client_id_pattern(id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(regexp_replace(id, '[._-]', '', 'g')) >= 8 AND id ~ '[A-DF-Za-df-z]'
        THEN replace(replace(id, '.', '\.?'), '-', '-?') END
$$;

-- Every text of a table that names the device it is about, but for those columns
-- that hold Client-Ids by their nature and are not shown.
-- +goose StatementBegin
DO $$
DECLARE
    c     record;
    which text;
BEGIN
    FOREACH which IN ARRAY ARRAY['client_id', 'new_client_id'] LOOP
        FOR c IN
            SELECT t.relname AS of, a.attname AS name, format_type(a.atttypid, NULL) AS type
            FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid
            WHERE t.relnamespace = 'public'::regnamespace AND t.relkind IN ('r', 'p') AND NOT t.relispartition
                AND t.relname <> 'upstream_accounts' AND a.attname NOT IN ('device_id', 'client_id')
                AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                AND a.atttypid IN ('text'::regtype, 'json'::regtype, 'jsonb'::regtype)
                AND EXISTS (SELECT FROM pg_attribute o WHERE o.attrelid = t.oid AND o.attname = 'device_id')
        LOOP
            EXECUTE format($q$
                UPDATE %1$I AS r SET %2$I = regexp_replace(r.%2$I::text, s.pattern, '***', 'gi')::%3$s
                FROM (SELECT id, %4$I AS secret, pg_temp.client_id_pattern(%4$I) AS pattern FROM devices) AS s
                WHERE s.id = r.device_id AND strpos(lower(r.%2$I::text), lower(right(s.secret, 4))) > 0
                    AND r.%2$I::text ~* s.pattern$q$, c.of, c.name, c.type, which);
        END LOOP;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Client-Ids from before, which may be approved again, are not on record: where
-- devices name theirs by key, they are found by key.
UPDATE calls SET result = regexp_replace(result::text, '(\\*"uuid\\*"\s*:\s*\\*")[^"\\]{8,64}(\\*")', '\1***\2', 'g')::json
WHERE tool = 'self.get_system_info' AND result::text ~ '\\*"uuid\\*"\s*:\s*\\*"[^"\\*]';
UPDATE device_facts SET body = regexp_replace(body::text, '("uuid"\s*:\s*")[^"\\]{8,64}(")', '\1***\2', 'g')::json
WHERE body::text ~ '"uuid"\s*:\s*"[^"\\*]';

-- The audit names a Client-Id by its tag, as conflicts do.
UPDATE audit_entries SET detail = detail - 'client_id' || jsonb_build_object('client',
    left(encode(sha256(convert_to('client-id ' || (detail ->> 'client_id'), 'UTF8')), 'hex'), 12))
WHERE action LIKE 'device.%' AND detail ? 'client_id';
