-- Reads whose SQL differs from that for SQLite.

-- Each part has its own ORDER BY and LIMIT, so that PostgreSQL reads it along an index.
-- name: part
SELECT * FROM (
    SELECT {columns} FROM {table} WHERE {conditions}
    ORDER BY {order} LIMIT (:limit)::bigint + (:offset)::bigint
) AS part

-- name: in_ranges
EXISTS (
    SELECT 1 FROM json_array_elements((:ranges)::json) AS range
    WHERE number BETWEEN (range ->> 0)::bigint AND (range ->> 1)::bigint
)

-- name: tasks_in_ranges
SELECT
    job_id, task, state, attempt, preemptions, failures, exit_code, signal,
    first_start_ms, start_ms, end_ms, life
FROM json_array_elements((:ranges)::json) AS span
JOIN tasks ON task BETWEEN (span ->> 0)::bigint AND (span ->> 1)::bigint
WHERE job_id = :job_id
ORDER BY task
LIMIT :limit

-- name: sweeps
SELECT launches.sweep, jobs.state, count(*), min(jobs.number), max(jobs.number), min(jobs.submit_ms)
FROM jobs
JOIN launches ON launches.id = jobs.launch
WHERE jobs."user" = :user AND launches.sweep IS NOT NULL
    AND ((:within)::text[] IS NULL OR jobs.tenant = ANY((:within)::text[]))
GROUP BY launches.sweep, jobs.state
ORDER BY launches.sweep, jobs.state

-- name: visible_own_within
("user" = :visible_to AND tenant = ANY((:visible_within)::text[]))

-- name: visible_tenants
tenant = ANY((:visible_tenants)::text[])

-- name: counts
SELECT state, sum(jobs)::bigint FROM job_counts
WHERE archived <= :archived AND (:tenant = '' OR tenant = :tenant)
    AND (:user = '' OR "user" = :user)
GROUP BY state
HAVING sum(jobs) > 0

-- name: job_measures
SELECT
    job_id, sum(gpu_ms)::bigint, sum(busy_percent_ms)::bigint, max(peak_percent),
    sum(power_ms)::bigint, sum(energy_uj)::bigint, max(peak_memory_mb)
FROM attempt_measures
WHERE job_id {in_names}
GROUP BY job_id
