-- The schema of a PostgreSQL database: versions, tables and columns.

-- name: has_meta
SELECT to_regclass('public.meta') IS NOT NULL

-- name: count_tables
SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = 'public'

-- name: has_leadership
SELECT to_regclass('public.leadership') IS NOT NULL

-- name: leader
SELECT holder, extract(epoch FROM until - clock_timestamp())::float8 FROM leadership
WHERE holder <> '' AND until > clock_timestamp()

-- name: column_types
SELECT table_name, column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public'

-- name: columns_to_copy
SELECT columns.table_name, columns.column_name
FROM information_schema.columns
JOIN information_schema.tables USING (table_schema, table_name)
WHERE columns.table_schema = 'public' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER'
ORDER BY columns.table_name, ordinal_position

-- name: continue_audit_numbers
SELECT setval(
    pg_get_serial_sequence('audit', 'number'), (SELECT coalesce(max(number), 0) + 1 FROM audit),
    false
)
