-- The writes of SQLite. An existing row is replaced, unless a query says otherwise.

-- name: begin
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: read_counters
SELECT
    next_number, last_event,
    (SELECT ifnull(max(id), 0) FROM specs),
    (SELECT ifnull(max(id), 0) FROM launches),
    (SELECT ifnull(max(number), 0) FROM archived_jobs)
FROM meta

-- name: write_counters
UPDATE meta SET next_number = ?, last_event = ?

-- name: insert_spec
INSERT INTO specs (id, spec) VALUES (?, ?)

-- name: insert_launch
INSERT INTO launches (id, launch) VALUES (?, ?)

-- name: insert_pending_job
INSERT INTO jobs (
    number, name, tenant, user, reason, priority, gpu_milli, command, submit_ms, life, spec, launch,
    state
) VALUES

-- name: pending_job_values
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), 'pending')

-- Jobs of one submission: first the values that all share, then four values for each.
-- name: insert_similar_jobs
WITH shared (tenant, user, priority, gpu_milli, submit_ms, spec, launch) AS (
    VALUES (?, ?, ?, ?, ?, ?, ?)
), own (number, name, command, life) AS (
    VALUES {}
)
INSERT INTO jobs (
    number, name, tenant, user, reason, priority, gpu_milli, command, submit_ms, life, spec, launch,
    state
)
SELECT
    number, name, tenant, user, '', priority, gpu_milli, command, submit_ms, life, spec,
    nullif(launch, 0), 'pending'
FROM shared, own

-- name: upsert_job
INSERT INTO jobs (
    number, name, tenant, user, reason, priority, gpu_milli, command, submit_ms, life, spec, launch,
    other_id, state, ended, first_start_ms, start_ms, end_ms, attempt, preemptions, failures,
    exit_code, signal
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET
    other_id = excluded.other_id,
    name = excluded.name,
    tenant = excluded.tenant,
    user = excluded.user,
    reason = excluded.reason,
    priority = excluded.priority,
    gpu_milli = excluded.gpu_milli,
    command = excluded.command,
    submit_ms = excluded.submit_ms,
    life = excluded.life,
    spec = excluded.spec,
    -- The launch is written once; later writes of the job without a launch keep it.
    launch = ifnull(excluded.launch, launch),
    state = excluded.state,
    ended = excluded.ended,
    first_start_ms = excluded.first_start_ms,
    start_ms = excluded.start_ms,
    end_ms = excluded.end_ms,
    attempt = excluded.attempt,
    preemptions = excluded.preemptions,
    failures = excluded.failures,
    exit_code = excluded.exit_code,
    signal = excluded.signal

-- name: set_launch
UPDATE {table} SET launch = ?
WHERE (number = ? AND other_id = '') OR (other_id = ? AND other_id <> '')

-- name: states_of
SELECT tenant, user, state FROM {table}
WHERE number IN (SELECT value FROM json_each(?))

-- name: add_count
INSERT INTO job_counts (archived, tenant, user, state, jobs) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: copy_jobs
INSERT INTO {into} (
    number, name, tenant, user, state, reason, priority, gpu_milli, command,
    submit_ms, first_start_ms, start_ms, end_ms, attempt, preemptions, failures, exit_code, signal,
    ended, life, spec, launch, other_id
)
SELECT
    number, name, tenant, user, state, reason, priority, gpu_milli, command,
    submit_ms, first_start_ms, start_ms, end_ms, attempt, preemptions, failures, exit_code, signal,
    ended, life, spec, launch, other_id
FROM {table}
WHERE number IN (SELECT value FROM json_each(?))

-- name: delete_jobs
DELETE FROM {table} WHERE number IN (SELECT value FROM json_each(?))

-- name: jobs_to_archive
SELECT number FROM jobs
WHERE ended = 1 AND end_ms < ?
ORDER BY end_ms, number
LIMIT ?

-- name: insert_history
INSERT INTO history (first_sequence, last_sequence, newest_ms, events) VALUES (?, ?, ?, ?)

-- name: delete_old_answers
DELETE FROM answers
WHERE rowid IN (SELECT rowid FROM answers WHERE at_ms < ? ORDER BY at_ms LIMIT ?)

-- name: delete_old_hours
DELETE FROM device_hours
WHERE (hour_ms, node_id, device) IN (
    SELECT hour_ms, node_id, device FROM device_hours WHERE hour_ms < ? ORDER BY hour_ms LIMIT ?
)

-- name: delete_old_audit
-- Reads only the oldest rows: there may be millions, and other commits wait for this one.
DELETE FROM audit
WHERE at_ms < ? AND number IN (SELECT number FROM audit ORDER BY number LIMIT ?)

-- name: delete_old_environments
DELETE FROM environments
WHERE name IN (
    SELECT name FROM environments
    WHERE name NOT IN (
        SELECT captured FROM launches
        WHERE captured IS NOT NULL
        AND id IN (SELECT launch FROM jobs WHERE ended = 0 OR end_ms >= ?)
    )
    LIMIT ?
)

-- name: delete_old_estimates
DELETE FROM estimates
WHERE rowid IN (SELECT rowid FROM estimates WHERE start_ms < ? ORDER BY start_ms LIMIT ?)

-- name: first_chunks
SELECT first_sequence, last_sequence, newest_ms FROM history ORDER BY first_sequence LIMIT ?

-- name: delete_old_history
DELETE FROM history WHERE last_sequence <= ?
