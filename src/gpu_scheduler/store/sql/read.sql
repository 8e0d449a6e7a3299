-- All reads. {table} is jobs or archived_jobs.

-- name: job_columns
number, other_id, name, tenant, "user", state, reason, priority, command, submit_ms, first_start_ms, start_ms, end_ms, attempt, preemptions, failures,
exit_code, signal, life, spec

-- name: spec_of_job
(SELECT specs.spec FROM specs WHERE specs.id = job.spec)

-- name: job
SELECT {columns}, {spec} FROM {table} AS job WHERE number = :number AND other_id = ''
UNION ALL
SELECT {columns}, {spec} FROM {table} AS job WHERE other_id = :job_id AND other_id <> ''

-- name: jobs
SELECT {columns}, {spec} FROM jobs AS job ORDER BY number

-- name: live_jobs
SELECT {columns}, {spec} FROM jobs AS job WHERE ended = 0 ORDER BY number

-- name: recently_ended
SELECT {columns}, {spec} FROM jobs AS job
WHERE ended = 1 AND end_ms IS NOT NULL
ORDER BY end_ms DESC, number DESC
LIMIT :limit

-- The specs are read for the rows of the page only, so they are outside of the inner query.
-- name: page
SELECT {columns}, {spec} FROM ({parts} ORDER BY {order} LIMIT :limit OFFSET :offset) AS job
ORDER BY {order}

-- name: part
SELECT {columns} FROM {table} WHERE {conditions}

-- name: count_part
SELECT count(*) FROM {table} WHERE {conditions}

-- name: in_ranges
EXISTS (
    SELECT 1 FROM json_each(:ranges)
    WHERE number BETWEEN json_extract(value, '$[0]') AND json_extract(value, '$[1]')
)

-- name: in_sweep
launch IN (SELECT launches.id FROM launches WHERE launches.sweep = :sweep)

-- name: sweeps
SELECT launches.sweep, jobs.state, count(*), min(jobs.number), max(jobs.number), min(jobs.submit_ms)
FROM jobs INDEXED BY jobs_by_user
JOIN launches ON launches.id = jobs.launch
WHERE jobs."user" = :user AND launches.id IN (SELECT id FROM launches WHERE sweep IS NOT NULL)
    AND (:within IS NULL OR jobs.tenant IN (SELECT value FROM json_each(:within)))
GROUP BY launches.sweep, jobs.state
ORDER BY launches.sweep, jobs.state

-- name: visible_own
"user" = :visible_to

-- name: visible_own_within
("user" = :visible_to AND tenant IN (SELECT value FROM json_each(:visible_within)))

-- name: visible_tenants
tenant IN (SELECT value FROM json_each(:visible_tenants))

-- name: counts
SELECT state, sum(jobs) FROM job_counts
WHERE archived <= :archived AND (:tenant = '' OR tenant = :tenant)
    AND (:user = '' OR "user" = :user)
GROUP BY state
HAVING sum(jobs) > 0

-- name: sort_key
SELECT "{key}" FROM jobs WHERE number = :number
UNION ALL
SELECT "{key}" FROM archived_jobs WHERE number = :number

-- name: tasks
SELECT
    job_id, task, state, attempt, preemptions, failures, exit_code, signal,
    first_start_ms, start_ms, end_ms, life
FROM tasks
WHERE job_id = :job_id AND task BETWEEN :low AND :high
ORDER BY task
LIMIT :limit

-- name: tasks_in_ranges
SELECT
    job_id, task, state, attempt, preemptions, failures, exit_code, signal,
    first_start_ms, start_ms, end_ms, life
FROM json_each(:ranges) AS span
CROSS JOIN tasks
WHERE job_id = :job_id
    AND task BETWEEN json_extract(span.value, '$[0]') AND json_extract(span.value, '$[1]')
ORDER BY task
LIMIT :limit

-- name: launch
SELECT job.command, launches.launch
FROM {table} AS job
JOIN launches ON launches.id = job.launch
WHERE (job.number = :number AND job.other_id = '') OR (job.other_id = :job_id AND job.other_id <> '')

-- name: launches
SELECT job.number, job.command, launches.launch
FROM jobs AS job
JOIN launches ON launches.id = job.launch
WHERE job.number {in_names} AND job.other_id = ''

-- name: environment
SELECT name, variables FROM environments WHERE name = :name

-- name: attempts
SELECT
    allocation_id, job_id, task, attempt, placements, start_ms, end_ms, state,
    exit_code, signal, detail, gpu_models
FROM attempts
WHERE job_id = :job_id AND (task = :task OR :task IS NULL)
    AND (task IS NULL OR task BETWEEN :low AND :high)
ORDER BY task IS NOT NULL, task, attempt
LIMIT :limit

-- name: attempt_measures
SELECT
    allocation_id, job_id, task, attempt, warning,
    gpu_ms, busy_percent_ms, peak_percent, power_ms, energy_uj, peak_memory_mb
FROM attempt_measures
WHERE job_id = :job_id AND (task = :task OR :task IS NULL)
    AND (task IS NULL OR task BETWEEN :low AND :high)
ORDER BY task IS NOT NULL, task, attempt

-- name: job_measures
SELECT
    job_id, sum(gpu_ms), sum(busy_percent_ms), max(peak_percent), sum(power_ms), sum(energy_uj),
    max(peak_memory_mb)
FROM attempt_measures
WHERE job_id {in_names}
GROUP BY job_id

-- name: measures_by_allocation
SELECT
    allocation_id, gpu_ms, busy_percent_ms, peak_percent, power_ms, energy_uj, peak_memory_mb
FROM attempt_measures
WHERE allocation_id {in_names}

-- name: device_hours
SELECT
    hour_ms, node_id, device, read_ms, gpu_ms, busy_percent_ms, peak_percent, memory_mb_ms,
    peak_memory_mb, power_ms, energy_uj, peak_power_mw, peak_temperature_c, held_milli_ms
FROM device_hours
WHERE hour_ms >= :from_ms AND hour_ms < :before_ms
ORDER BY hour_ms, node_id, device

-- name: attempts_between
SELECT
    allocation_id, job_id, task, attempt, placements, start_ms, end_ms, state,
    exit_code, signal, detail, gpu_models
FROM attempts
WHERE end_ms >= :from_ms AND start_ms < :before_ms
    AND (end_ms, allocation_id) > (:after_ms, :after_id)
ORDER BY end_ms, allocation_id
LIMIT :limit

-- name: response
SELECT "user", key, request_hash, status, body, at_ms FROM answers WHERE "user" = :user AND key = :key

-- name: tenants
SELECT tenant FROM tenants ORDER BY id

-- name: tokens
SELECT
    id, secret_hash, name, "user", uid, tenant, role, created_by, created_ms, expires_ms,
    last_used_ms, revoked_ms
FROM tokens ORDER BY id

-- name: identities
SELECT kind, identity FROM identities ORDER BY kind, id

-- name: audit
SELECT number, at_ms, "user", origin, via, action, target, outcome, code, detail, count FROM audit
WHERE
    number < :before AND at_ms >= :since_ms
    AND (:user = '' OR "user" = :user)
    AND (:action = '' OR action = :action)
    AND (:outcome = '' OR outcome = :outcome)
ORDER BY number DESC
LIMIT :limit

-- name: week_usage
SELECT tenant, "user", week_ms, gpu_milli_ms FROM week_usage
ORDER BY tenant, "user" IS NOT NULL, "user"

-- name: estimates
SELECT
    job_id, tenant, "user", made_ms, promised_ms, basis, start_ms, forecast_ms, earliest_ms,
    latest_ms
FROM estimates
WHERE start_ms >= :since_ms
ORDER BY start_ms, job_id

-- name: open_estimates
SELECT
    job_id, tenant, "user", made_ms, promised_ms, basis, start_ms, forecast_ms, earliest_ms,
    latest_ms
FROM estimates
WHERE start_ms IS NULL
ORDER BY job_id

-- name: last_estimates
SELECT
    job_id, tenant, "user", made_ms, promised_ms, basis, start_ms, forecast_ms, earliest_ms,
    latest_ms
FROM estimates
WHERE start_ms IS NOT NULL
ORDER BY start_ms DESC, job_id DESC
LIMIT :limit

-- name: advance_reservations
SELECT reservation FROM reservations ORDER BY number

-- name: services
SELECT service FROM services ORDER BY number

-- name: pools
SELECT pool, percent, elastic FROM pools ORDER BY pool

-- name: nodes
SELECT node FROM nodes ORDER BY ordinal, id

-- name: allocations
SELECT id, job_id, task, attempt, placements, start_ms, meeting FROM allocations ORDER BY id

-- name: reservations
SELECT promise FROM promises ORDER BY number

-- name: usage
SELECT period_ms, tenant, "user", totals FROM usage
ORDER BY period_ms IS NOT NULL, period_ms, tenant, "user" IS NOT NULL, "user"

-- name: shares
SELECT tenant, "user", usage, recent, rate, as_of_ms FROM shares
ORDER BY tenant, "user" IS NOT NULL, "user"

-- name: notices
SELECT id, target, at_ms, document, next_ms, tries, error FROM notices ORDER BY at_ms, id

-- name: cursor
SELECT name, sequence, note FROM cursors WHERE name = :name

-- name: history
SELECT first_sequence, events FROM history
WHERE first_sequence > (
    SELECT coalesce(max(first_sequence), 0) - 1 FROM history WHERE first_sequence <= :after + 1
)
ORDER BY first_sequence

-- name: last_event
SELECT last_event FROM meta

-- name: next_number
SELECT next_number FROM meta
