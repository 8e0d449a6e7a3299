-- The writes of PostgreSQL.

-- A commit is on disk when it returns, whatever the role or the database is configured to.
-- name: be_durable
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'

-- Reads a row of each main table: the database can answer while tables are locked.
-- name: probe
SELECT
    (SELECT true FROM jobs LIMIT 1),
    (SELECT true FROM tasks LIMIT 1),
    (SELECT true FROM allocations LIMIT 1),
    (SELECT true FROM history LIMIT 1),
    (SELECT true FROM nodes LIMIT 1),
    (SELECT true FROM meta LIMIT 1)

-- name: lock
SELECT commits, next_number, last_event FROM meta FOR UPDATE

-- name: read_counters
SELECT
    (SELECT coalesce(max(id), 0) FROM specs),
    (SELECT coalesce(max(id), 0) FROM launches),
    (SELECT coalesce(max(number), 0) FROM archived_jobs)

-- name: write_counters
UPDATE meta SET commits = commits + 1, next_number = %s, last_event = %s

-- name: register_writer
INSERT INTO writers (id, name, commits) VALUES (%s, %s, 0) ON CONFLICT (id) DO NOTHING

-- name: delete_old_writers
DELETE FROM writers WHERE last < now() - interval '30 days' AND id <> %s

-- name: mark_commit
UPDATE writers SET commits = %s, last = now() WHERE id = %s

-- Waits until a transaction that changed the row has ended.
-- name: last_commit
SELECT commits FROM writers WHERE id = %s FOR UPDATE

-- Our own lost connection, whose COMMIT did not arrive, holds its locks until it is closed.
-- name: end_lost_connections
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND pid <> pg_backend_pid() AND datname = current_database()
    AND state LIKE 'idle%%'

-- name: end_other_writers
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name LIKE %s AND application_name <> %s AND datname = current_database()

-- name: insert_specs
INSERT INTO specs (id, spec) SELECT * FROM unnest(%b::bigint[], %b::text[])

-- name: insert_launches
INSERT INTO launches (id, launch, captured, sweep)
SELECT * FROM unnest(%b::bigint[], %b::text[], %b::text[], %b::text[])

-- name: copy_new_jobs
COPY jobs (
    number, name, command, life, tenant, "user", priority, gpu_milli, submit_ms, spec, launch
) FROM STDIN

-- name: insert_new_jobs
INSERT INTO jobs (
    number, name, command, life, tenant, "user", priority, gpu_milli, submit_ms, spec, launch
)
SELECT
    own.*, %(tenant)s::text, %(user)s::text, %(priority)s::bigint, %(gpu_milli)s::bigint,
    %(submit_ms)s::bigint, %(spec)s::bigint, nullif(%(launch)s::bigint, 0)
FROM unnest(%(numbers)b::bigint[], %(names)b::text[], %(commands)b::text[], %(lives)b::text[]) AS own

-- name: add_counts
WITH change AS (
    SELECT 0::smallint AS archived, tenant, "user", state, -count(*) AS jobs
    FROM jobs
    WHERE number = ANY(%(known)b::bigint[])
    GROUP BY tenant, "user", state
    UNION ALL
    SELECT
        * FROM unnest(%(archived)b::smallint[], %(tenants)b::text[], %(users)b::text[],
        %(states)b::text[], %(jobs)b::bigint[])
)
INSERT INTO job_counts (archived, tenant, "user", state, jobs)
SELECT archived, tenant, "user", state, sum(jobs)
FROM change
GROUP BY archived, tenant, "user", state
HAVING sum(jobs) <> 0
ON CONFLICT (archived, tenant, "user", state)
DO UPDATE SET jobs = job_counts.jobs + excluded.jobs

-- name: shift_counts
INSERT INTO job_counts (archived, tenant, "user", state, jobs)
SELECT side.archived, tenant, "user", state, side.sign * count(*)
FROM {table}, (VALUES (%(into)s::smallint, 1), (1 - %(into)s::smallint, -1)) AS side (archived, sign)
WHERE number = ANY(%(numbers)b::bigint[])
GROUP BY side.archived, side.sign, tenant, "user", state
ON CONFLICT (archived, tenant, "user", state)
DO UPDATE SET jobs = job_counts.jobs + excluded.jobs

-- name: move_jobs
WITH gone AS (
    DELETE FROM {table} WHERE number = ANY(%b::bigint[]) RETURNING *
)
INSERT INTO {into} (
    number, name, tenant, "user", state, reason, priority, gpu_milli, command,
    submit_ms, first_start_ms, start_ms, end_ms, attempt, preemptions, failures, exit_code, signal,
    ended, life, spec, launch, other_id
)
SELECT
    number, name, tenant, "user", state, reason, priority, gpu_milli, command,
    submit_ms, first_start_ms, start_ms, end_ms, attempt, preemptions, failures, exit_code, signal,
    ended, life, spec, launch, other_id
FROM gone

-- name: set_launch
WITH kept AS (
    UPDATE jobs SET launch = %(launch)s
    WHERE (number = %(number)s AND other_id = '') OR (other_id = %(job_id)s AND other_id <> '')
    RETURNING 1
), archived AS (
    UPDATE archived_jobs SET launch = %(launch)s
    WHERE (number = %(number)s AND other_id = '') OR (other_id = %(job_id)s AND other_id <> '')
    RETURNING 1
)
SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM archived)

-- name: jobs_to_archive
SELECT number FROM jobs
WHERE ended = 1 AND end_ms < %s
ORDER BY end_ms, number
LIMIT %s

-- name: insert_history
INSERT INTO history (first_sequence, last_sequence, newest_ms, events)
SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::text[])

-- name: delete_old_answers
DELETE FROM answers
WHERE ("user", key) IN (
    SELECT "user", key FROM answers WHERE at_ms < %s ORDER BY at_ms LIMIT %s
)

-- name: delete_old_hours
DELETE FROM device_hours
WHERE (hour_ms, node_id, device) IN (
    SELECT hour_ms, node_id, device FROM device_hours WHERE hour_ms < %s ORDER BY hour_ms LIMIT %s
)

-- name: delete_old_audit
-- Reads only the oldest rows: there may be millions, and other commits wait for this one.
DELETE FROM audit
WHERE at_ms < %s AND number = ANY (ARRAY(SELECT number FROM audit ORDER BY number LIMIT %s))

-- name: delete_old_environments
DELETE FROM environments
WHERE name IN (
    SELECT name FROM environments
    WHERE NOT EXISTS (
        SELECT 1 FROM launches
        JOIN jobs ON jobs.launch = launches.id
        WHERE launches.captured = environments.name AND (jobs.ended = 0 OR jobs.end_ms >= %s)
    )
    LIMIT %s
)

-- name: delete_old_estimates
DELETE FROM estimates
WHERE job_id IN (
    SELECT job_id FROM estimates WHERE start_ms < %s ORDER BY start_ms, job_id LIMIT %s
)

-- name: first_chunks
SELECT first_sequence, last_sequence, newest_ms FROM history ORDER BY first_sequence LIMIT %s

-- name: delete_old_history
DELETE FROM history WHERE last_sequence <= %s
