-- Consistency checks: each query returns rows only if something is wrong. SQLite and PostgreSQL run the same text.

-- name: numbers
SELECT greatest FROM (
    SELECT max(number) AS greatest FROM jobs
    UNION ALL
    SELECT max(number) FROM archived_jobs
) AS found
WHERE greatest >= (SELECT next_number FROM meta)

-- name: events
SELECT last_sequence FROM history
WHERE last_sequence > (SELECT last_event FROM meta) OR last_sequence < first_sequence

-- name: specs
SELECT number FROM jobs WHERE spec NOT IN (SELECT id FROM specs)

-- name: launches
SELECT number FROM jobs WHERE launch IS NOT NULL AND launch NOT IN (SELECT id FROM launches)

-- name: twice
SELECT number FROM jobs WHERE number IN (SELECT number FROM archived_jobs)

-- name: undercounted
SELECT archived, tenant, "user", state, count(*) FROM (
    SELECT 0 AS archived, tenant, "user", state FROM jobs
    UNION ALL
    SELECT 1, tenant, "user", state FROM archived_jobs
) AS every
GROUP BY archived, tenant, "user", state
EXCEPT
SELECT archived, tenant, "user", state, jobs FROM job_counts

-- name: overcounted
SELECT archived, tenant, "user", state, jobs FROM job_counts WHERE jobs <> 0
EXCEPT
SELECT archived, tenant, "user", state, count(*) FROM (
    SELECT 0 AS archived, tenant, "user", state FROM jobs
    UNION ALL
    SELECT 1, tenant, "user", state FROM archived_jobs
) AS every
GROUP BY archived, tenant, "user", state
