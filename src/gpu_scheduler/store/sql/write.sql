-- What a commit does. A row that exists is replaced, except where it says otherwise.

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

-- name: insert_fresh_job
INSERT INTO jobs (
    number, name, tenant, user, reason, priority, gpu_milli, command, submit_ms, life, spec, launch,
    state
) VALUES

-- name: fresh_job_values
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), 'pending')

-- name: alike_job_values
(?{}, ?{}, ?1, ?2, '', ?3, ?4, ?{}, ?5, ?{}, ?6, nullif(?7, 0), 'pending')

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
    -- How a job is run is written once, and other writes of the job leave it alone.
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

-- name: old_ends
SELECT number FROM jobs
WHERE ended = 1 AND end_ms < ?
ORDER BY end_ms, number
LIMIT ?

-- name: upsert_task
INSERT INTO tasks (
    job_id, task, state, attempt, preemptions, failures, exit_code, signal,
    first_start_ms, start_ms, end_ms, life
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    state = excluded.state,
    attempt = excluded.attempt,
    preemptions = excluded.preemptions,
    failures = excluded.failures,
    exit_code = excluded.exit_code,
    signal = excluded.signal,
    first_start_ms = excluded.first_start_ms,
    start_ms = excluded.start_ms,
    end_ms = excluded.end_ms,
    life = excluded.life

-- name: upsert_attempt
INSERT OR REPLACE INTO attempts (
    allocation_id, job_id, task, attempt, placements, start_ms, end_ms, state,
    exit_code, signal, detail, gpu_models
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: upsert_attempt_measure
INSERT OR REPLACE INTO attempt_measures (
    allocation_id, job_id, task, attempt, warning, gpu_ms, busy_percent_ms, peak_percent, power_ms,
    energy_uj, peak_memory_mb
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: upsert_device_hour
INSERT OR REPLACE INTO device_hours (
    hour_ms, node_id, device, read_ms, gpu_ms, busy_percent_ms, peak_percent, memory_mb_ms,
    peak_memory_mb, power_ms, energy_uj, peak_power_mw, peak_temperature_c, held_milli_ms
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: upsert_environment
INSERT OR REPLACE INTO environments (name, variables) VALUES (?, ?)

-- name: upsert_allocation
INSERT OR REPLACE INTO allocations (id, job_id, task, attempt, start_ms, placements)
VALUES (?, ?, ?, ?, ?, ?)

-- name: delete_allocation
DELETE FROM allocations WHERE id = ?

-- name: upsert_promise
INSERT OR REPLACE INTO promises (job_id, number, at_ms, promise) VALUES (?, ?, ?, ?)

-- name: delete_promise
DELETE FROM promises WHERE job_id = ?

-- name: upsert_node
INSERT OR REPLACE INTO nodes (id, ordinal, state, cpu_milli, memory_mb, node)
VALUES (?, ?, ?, ?, ?, ?)

-- name: delete_node
DELETE FROM nodes WHERE id = ?

-- name: upsert_tenant
INSERT OR REPLACE INTO tenants (id, tenant) VALUES (?, ?)

-- name: delete_tenant
DELETE FROM tenants WHERE id = ?

-- name: upsert_token
INSERT OR REPLACE INTO tokens (
    id, secret_hash, name, user, uid, tenant, role, created_by, created_ms, expires_ms,
    last_used_ms, revoked_ms
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_audit
INSERT INTO audit (at_ms, user, origin, via, action, target, outcome, code, detail, count)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: upsert_week
INSERT INTO week_usage (tenant, user, week_ms, gpu_milli_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, user IS NULL, ifnull(user, ''))
DO UPDATE SET week_ms = excluded.week_ms, gpu_milli_ms = excluded.gpu_milli_ms

-- name: upsert_estimate
INSERT OR REPLACE INTO estimates (
    job_id, tenant, user, made_ms, promised_ms, basis, start_ms
) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: delete_estimate
DELETE FROM estimates WHERE job_id = ?

-- name: upsert_window
INSERT OR REPLACE INTO reservations (id, number, reservation) VALUES (?, ?, ?)

-- name: delete_window
DELETE FROM reservations WHERE id = ?

-- name: upsert_pool
INSERT OR REPLACE INTO pools (pool, percent, elastic) VALUES (?, ?, ?)

-- name: upsert_usage
INSERT INTO usage (period_ms, tenant, user, totals) VALUES (?, ?, ?, ?)
ON CONFLICT (period_ms IS NULL, ifnull(period_ms, 0), tenant, user IS NULL, ifnull(user, ''))
DO UPDATE SET totals = excluded.totals

-- name: upsert_share
INSERT INTO shares (tenant, user, usage, recent, rate, as_of_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, user IS NULL, ifnull(user, ''))
DO UPDATE SET
    usage = excluded.usage,
    recent = excluded.recent,
    rate = excluded.rate,
    as_of_ms = excluded.as_of_ms

-- name: upsert_answer
INSERT OR REPLACE INTO answers (user, key, request_hash, status, body, at_ms)
VALUES (?, ?, ?, ?, ?, ?)

-- name: upsert_notice
INSERT OR REPLACE INTO notices (id, target, at_ms, document, next_ms, tries, error)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: delete_notice
DELETE FROM notices WHERE id = ?

-- name: upsert_cursor
INSERT OR REPLACE INTO cursors (name, sequence, note) VALUES (?, ?, ?)

-- name: insert_history
INSERT INTO history (first_sequence, last_sequence, newest_ms, events) VALUES (?, ?, ?, ?)

-- name: forget_answers
DELETE FROM answers
WHERE rowid IN (SELECT rowid FROM answers WHERE at_ms < ? ORDER BY at_ms LIMIT ?)

-- name: forget_hours
DELETE FROM device_hours
WHERE (hour_ms, node_id, device) IN (
    SELECT hour_ms, node_id, device FROM device_hours WHERE hour_ms < ? ORDER BY hour_ms LIMIT ?
)

-- name: forget_audit
DELETE FROM audit
WHERE number IN (SELECT number FROM audit WHERE at_ms < ? ORDER BY number LIMIT ?)

-- name: forget_environments
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

-- name: forget_estimates
DELETE FROM estimates
WHERE rowid IN (SELECT rowid FROM estimates WHERE start_ms < ? ORDER BY start_ms LIMIT ?)

-- name: first_batches
SELECT first_sequence, last_sequence, newest_ms FROM history ORDER BY first_sequence LIMIT ?

-- name: forget_history
DELETE FROM history WHERE last_sequence <= ?
