-- +goose Up

-- A model's token that names no tools may call none. Those from before may call
-- all, and say so.
UPDATE tokens SET tools = '{*}' WHERE kind = 'model' AND tools = '{}';

-- The tools of an inventory that it lists for people only: what came of them is
-- not for models.
-- +goose StatementBegin
CREATE FUNCTION user_tools(tools jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(t ->> 'name'), '{}') FROM jsonb_array_elements(tools) t WHERE t ->> 'audience' = 'user'
$$;
-- +goose StatementEnd
ALTER TABLE inventories ADD COLUMN user_tools text[] GENERATED ALWAYS AS (user_tools(tools)) STORED;
