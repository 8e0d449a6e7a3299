-- Everything the scheduler remembers. Times are milliseconds since 1970 (UTC), GPUs are in
-- thousandths, memory is in MiB. Read it with the sqlite3 program as you like; write only through
-- the scheduler, which keeps counts and numbers in step.

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    last_event INTEGER NOT NULL
) STRICT;

INSERT INTO meta (one, schema_version, created_ms, next_number, last_event)
VALUES (1, 0, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 1, 0);

-- --- jobs

-- What many jobs have in common is written once: what they ask for, and how they are run (the
-- command of the job, unless the launch has an argv of its own).
CREATE TABLE specs (
    id INTEGER PRIMARY KEY,
    spec TEXT NOT NULL
) STRICT;

CREATE TABLE launches (
    id INTEGER PRIMARY KEY,
    launch TEXT NOT NULL,
    captured TEXT GENERATED ALWAYS AS (json_extract(launch, '$.captured')) VIRTUAL
) STRICT;

-- The id of a job is job-<number> unless other_id says another. As 100,000 jobs a second are
-- inserted here, there are few columns and few indexes; the condition of a partial index is checked
-- for every row that is written, so it stays simple. What spec and launch name is never deleted, so no
-- foreign key has to be checked.
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT GENERATED ALWAYS AS (ifnull(nullif(other_id, ''), 'job-' || number)) VIRTUAL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    priority INTEGER NOT NULL,
    gpu_milli INTEGER NOT NULL,
    gpu_count REAL GENERATED ALWAYS AS (gpu_milli / 1000.0) VIRTUAL,
    command TEXT NOT NULL,
    submit_ms INTEGER NOT NULL,
    first_start_ms INTEGER,
    start_ms INTEGER,
    end_ms INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    preemptions INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    exit_code INTEGER,
    signal INTEGER,
    ended INTEGER NOT NULL DEFAULT 0,
    life TEXT NOT NULL,
    spec INTEGER NOT NULL,
    launch INTEGER,
    other_id TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX jobs_by_number ON jobs (ended);
CREATE INDEX jobs_by_user ON jobs (user, ended);
CREATE INDEX jobs_by_priority ON jobs (priority DESC, number) WHERE ended = 0;
CREATE INDEX jobs_by_end ON jobs (end_ms) WHERE ended = 1;
CREATE INDEX jobs_by_state ON jobs (state) WHERE ended = 0 AND state <> 'pending';
CREATE UNIQUE INDEX jobs_by_other_id ON jobs (other_id) WHERE other_id <> '';

-- Jobs that ended long ago; the same columns as jobs.
CREATE TABLE archived_jobs (
    number INTEGER PRIMARY KEY,
    id TEXT GENERATED ALWAYS AS (ifnull(nullif(other_id, ''), 'job-' || number)) VIRTUAL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    priority INTEGER NOT NULL,
    gpu_milli INTEGER NOT NULL,
    gpu_count REAL GENERATED ALWAYS AS (gpu_milli / 1000.0) VIRTUAL,
    command TEXT NOT NULL,
    submit_ms INTEGER NOT NULL,
    first_start_ms INTEGER,
    start_ms INTEGER,
    end_ms INTEGER,
    attempt INTEGER NOT NULL,
    preemptions INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    ended INTEGER NOT NULL,
    life TEXT NOT NULL,
    spec INTEGER NOT NULL,
    launch INTEGER,
    other_id TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX archived_jobs_by_user ON archived_jobs (user);
CREATE INDEX archived_jobs_by_tenant ON archived_jobs (tenant);
CREATE INDEX archived_jobs_by_end ON archived_jobs (end_ms);
CREATE UNIQUE INDEX archived_jobs_by_other_id ON archived_jobs (other_id)
WHERE other_id <> '';

-- How many jobs there are of each kind, so that nobody has to count them.
CREATE TABLE job_counts (
    archived INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    state TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (archived, tenant, user, state)
) STRICT, WITHOUT ROWID;

-- Tasks of arrays, from their first start on.
CREATE TABLE tasks (
    job_id TEXT NOT NULL,
    task INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    preemptions INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    first_start_ms INTEGER,
    start_ms INTEGER,
    end_ms INTEGER,
    life TEXT NOT NULL,
    PRIMARY KEY (job_id, task)
) STRICT, WITHOUT ROWID;

-- Attempts that have ended.
CREATE TABLE attempts (
    allocation_id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    task INTEGER,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    start_ms INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    detail TEXT NOT NULL,
    placements TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX attempts_by_job ON attempts (job_id, task, attempt);

-- Captured environments can hold secrets; they go when no job that is kept names them.
CREATE TABLE environments (
    name TEXT NOT NULL PRIMARY KEY,
    variables TEXT NOT NULL
) STRICT;

-- --- the cluster

CREATE TABLE tenants (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT GENERATED ALWAYS AS (json_extract(tenant, '$.name')) VIRTUAL,
    tier TEXT GENERATED ALWAYS AS (json_extract(tenant, '$.tier')) VIRTUAL,
    max_gpus REAL GENERATED ALWAYS AS (json_extract(tenant, '$.quota.gpu_milli') / 1000.0) VIRTUAL
) STRICT;

CREATE TABLE nodes (
    id TEXT NOT NULL PRIMARY KEY,
    ordinal INTEGER NOT NULL,
    state TEXT NOT NULL,
    cpu_milli INTEGER NOT NULL,
    memory_mb INTEGER NOT NULL,
    node TEXT NOT NULL
) STRICT;

CREATE TABLE pools (
    pool TEXT NOT NULL PRIMARY KEY,
    percent INTEGER NOT NULL,
    elastic INTEGER NOT NULL
) STRICT;

CREATE TABLE allocations (
    id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    task INTEGER,
    attempt INTEGER NOT NULL,
    start_ms INTEGER NOT NULL,
    placements TEXT NOT NULL
) STRICT;

-- --- accounts

-- The totals are those of ledger.accounts, in its order; the view account_totals names them.
CREATE TABLE usage (
    period_ms INTEGER,
    tenant TEXT NOT NULL,
    user TEXT,
    totals TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX usage_by_account ON usage (
    period_ms IS NULL, ifnull(period_ms, 0), tenant, user IS NULL, ifnull(user, '')
);

CREATE TABLE shares (
    tenant TEXT NOT NULL,
    user TEXT,
    usage REAL NOT NULL,
    recent REAL NOT NULL,
    rate INTEGER NOT NULL,
    as_of_ms INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX shares_by_account ON shares (tenant, user IS NULL, ifnull(user, ''));

-- --- requests and history

CREATE TABLE answers (
    user TEXT NOT NULL,
    key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    status INTEGER NOT NULL,
    body TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (user, key)
) STRICT;

CREATE INDEX answers_by_age ON answers (at_ms);

-- History is only ever appended to. One row holds the events of one commit, as a JSON array of
-- [at_ms, kind, job_id, task, user, data]; the view events has one row for each.
CREATE TABLE history (
    first_sequence INTEGER PRIMARY KEY,
    last_sequence INTEGER NOT NULL,
    newest_ms INTEGER NOT NULL,
    events TEXT NOT NULL
) STRICT;

-- --- for people

CREATE VIEW events AS
SELECT
    history.first_sequence + event.key AS sequence,
    datetime(json_extract(event.value, '$[0]') / 1000, 'unixepoch') AS at,
    json_extract(event.value, '$[1]') AS kind,
    json_extract(event.value, '$[2]') AS job_id,
    json_extract(event.value, '$[3]') AS task,
    json_extract(event.value, '$[4]') AS user,
    json_extract(event.value, '$[5]') AS data
FROM history, json_each(history.events) AS event;

CREATE VIEW queue AS
SELECT
    number, id, name, tenant, user, priority, gpu_count,
    datetime(submit_ms / 1000, 'unixepoch') AS submitted,
    reason, command
FROM jobs
WHERE ended = 0 AND state = 'pending'
ORDER BY priority DESC, number;

CREATE VIEW job_times AS
SELECT
    number, id, name, tenant, user, state,
    datetime(submit_ms / 1000, 'unixepoch') AS submitted,
    datetime(first_start_ms / 1000, 'unixepoch') AS first_started,
    datetime(start_ms / 1000, 'unixepoch') AS started,
    datetime(end_ms / 1000, 'unixepoch') AS ended,
    (first_start_ms - submit_ms) / 1000.0 AS waited_seconds,
    (end_ms - start_ms) / 1000.0 AS ran_seconds,
    exit_code, signal
FROM jobs;

CREATE VIEW job_specs AS
SELECT
    jobs.number, jobs.id, jobs.command, specs.spec, launches.launch, jobs.life
FROM jobs
JOIN specs ON specs.id = jobs.spec
LEFT JOIN launches ON launches.id = jobs.launch;

CREATE VIEW gpus AS
SELECT
    nodes.id AS node,
    json_extract(device.value, '$.index') AS gpu,
    json_extract(device.value, '$.uuid') AS uuid,
    json_extract(device.value, '$.model') AS model,
    json_extract(device.value, '$.memory_mb') AS memory_mb,
    json_extract(device.value, '$.mode') AS mode,
    json_extract(device.value, '$.health') AS health,
    json_extract(device.value, '$.paused') AS paused,
    json_extract(device.value, '$.hot') AS hot,
    json_extract(device.value, '$.temperature_c') AS temperature_c,
    json_extract(device.value, '$.foreign.pid') AS foreign_pid,
    json_extract(device.value, '$.foreign.user') AS foreign_user
FROM nodes, json_each(nodes.node, '$.devices') AS device
ORDER BY nodes.ordinal, 2;

CREATE VIEW allocated_gpus AS
SELECT
    allocations.id AS allocation, allocations.job_id, allocations.task, allocations.attempt,
    json_extract(placement.value, '$.member') AS member,
    json_extract(placement.value, '$.node_id') AS node,
    json_extract(device.value, '$.index') AS gpu,
    json_extract(device.value, '$.share_milli') / 1000.0 AS share,
    json_extract(device.value, '$.memory_mb') AS memory_mb,
    datetime(allocations.start_ms / 1000, 'unixepoch') AS since
FROM
    allocations,
    json_each(allocations.placements) AS placement,
    json_each(placement.value, '$.devices') AS device;

CREATE VIEW attempt_gpus AS
SELECT
    attempts.allocation_id AS allocation, attempts.job_id, attempts.task, attempts.attempt,
    json_extract(placement.value, '$.member') AS member,
    json_extract(placement.value, '$.node_id') AS node,
    json_extract(device.value, '$.index') AS gpu,
    json_extract(device.value, '$.share_milli') / 1000.0 AS share,
    json_extract(device.value, '$.memory_mb') AS memory_mb
FROM
    attempts,
    json_each(attempts.placements) AS placement,
    json_each(placement.value, '$.devices') AS device;

CREATE VIEW account_totals AS
SELECT
    date(period_ms / 1000, 'unixepoch') AS period, tenant, user,
    json_extract(totals, '$[0]') / 3600000000.0 AS gpu_hours,
    json_extract(totals, '$[1]') / 3600000.0 / 1024 AS gpu_memory_gb_hours,
    json_extract(totals, '$[2]') / 3600000000.0 AS cpu_hours,
    json_extract(totals, '$[4]') AS completed,
    json_extract(totals, '$[5]') AS failed,
    json_extract(totals, '$[6]') AS cancelled,
    json_extract(totals, '$[7]') AS preemptions
FROM usage;
