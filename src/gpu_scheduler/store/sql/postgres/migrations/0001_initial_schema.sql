-- Everything the scheduler remembers. Times are milliseconds since 1970 (UTC), GPUs are in
-- thousandths, memory is in MiB. Read it with psql as you like; write only through the scheduler,
-- which keeps counts and numbers in step. Texts sort by their bytes, so that every database agrees
-- about the order.

CREATE TABLE meta (
    one integer PRIMARY KEY CHECK (one = 1),
    schema_version integer NOT NULL,
    created_ms bigint NOT NULL,
    next_number bigint NOT NULL,
    last_event bigint NOT NULL,
    commits bigint NOT NULL
) WITH (fillfactor = 10);

INSERT INTO meta (one, schema_version, created_ms, next_number, last_event, commits)
VALUES (1, 0, (extract(epoch FROM now()) * 1000)::bigint, 1, 0, 0);

-- One row for each program that writes here, with the number of its last commit. It is written in
-- the same transaction, so whoever lost the connection during a commit can look whether it is kept.
CREATE TABLE writers (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    commits bigint NOT NULL,
    opened timestamptz NOT NULL DEFAULT now(),
    last timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);

-- --- jobs

-- What many jobs have in common is written once: what they ask for, and how they are run (the
-- command of the job, unless the launch has an argv of its own).
CREATE TABLE specs (
    id bigint PRIMARY KEY,
    spec text COLLATE "C" NOT NULL
);

CREATE TABLE launches (
    id bigint PRIMARY KEY,
    launch text COLLATE "C" NOT NULL,
    captured text COLLATE "C",
    sweep text COLLATE "C"
);

CREATE INDEX launches_by_sweep ON launches (sweep) WHERE sweep IS NOT NULL;

-- The id of a job is job-<number> unless other_id says another. As tens of thousands of jobs a
-- second are copied here, there are few columns and few indexes. What spec and launch name is never
-- deleted, so no foreign key has to be checked.
CREATE TABLE jobs (
    number bigint PRIMARY KEY,
    id text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN other_id = '' THEN 'job-' || number::text ELSE other_id END
    ) STORED,
    name text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'pending',
    reason text COLLATE "C" NOT NULL DEFAULT '',
    priority bigint NOT NULL,
    gpu_milli bigint NOT NULL,
    command text COLLATE "C" NOT NULL,
    submit_ms bigint NOT NULL,
    first_start_ms bigint,
    start_ms bigint,
    end_ms bigint,
    attempt bigint NOT NULL DEFAULT 0,
    preemptions bigint NOT NULL DEFAULT 0,
    failures bigint NOT NULL DEFAULT 0,
    exit_code bigint,
    signal bigint,
    ended smallint NOT NULL DEFAULT 0,
    life text COLLATE "C" NOT NULL,
    spec bigint NOT NULL,
    launch bigint,
    other_id text COLLATE "C" NOT NULL DEFAULT ''
);

CREATE INDEX jobs_live ON jobs (number) WHERE ended = 0;
CREATE INDEX jobs_by_user ON jobs ("user", number);
CREATE INDEX jobs_by_end ON jobs (end_ms NULLS FIRST, number) WHERE ended = 1;
CREATE INDEX jobs_by_state ON jobs (number) WHERE ended = 0 AND state <> 'pending';
CREATE UNIQUE INDEX jobs_by_other_id ON jobs (other_id) WHERE other_id <> '';

-- Jobs that ended long ago; the same columns as jobs.
CREATE TABLE archived_jobs (LIKE jobs INCLUDING DEFAULTS INCLUDING GENERATED);

ALTER TABLE archived_jobs ADD PRIMARY KEY (number);
CREATE INDEX archived_jobs_by_user ON archived_jobs ("user", number);
CREATE INDEX archived_jobs_by_tenant ON archived_jobs (tenant, number);
CREATE INDEX archived_jobs_by_end ON archived_jobs (end_ms NULLS FIRST, number);
CREATE UNIQUE INDEX archived_jobs_by_other_id ON archived_jobs (other_id) WHERE other_id <> '';

-- How many jobs there are of each kind, so that nobody has to count them.
CREATE TABLE job_counts (
    archived smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL,
    PRIMARY KEY (archived, tenant, "user", state)
) WITH (fillfactor = 50);

-- Tasks of arrays, from their first start on.
CREATE TABLE tasks (
    job_id text COLLATE "C" NOT NULL,
    task bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    preemptions bigint NOT NULL,
    failures bigint NOT NULL,
    exit_code bigint,
    signal bigint,
    first_start_ms bigint,
    start_ms bigint,
    end_ms bigint,
    life text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, task)
);

-- Attempts that have ended; gpu_models are the models of GPUs that they held.
CREATE TABLE attempts (
    allocation_id text COLLATE "C" PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    task bigint,
    attempt bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    exit_code bigint,
    signal bigint,
    start_ms bigint NOT NULL,
    end_ms bigint NOT NULL,
    detail text COLLATE "C" NOT NULL,
    placements text COLLATE "C" NOT NULL,
    gpu_models text COLLATE "C" NOT NULL DEFAULT '[]'
);

CREATE INDEX attempts_by_job ON attempts (job_id, task, attempt);
CREATE INDEX attempts_by_end ON attempts (end_ms, allocation_id);

-- Captured environments can hold secrets; they go when no job that is kept names them.
CREATE TABLE environments (
    name text COLLATE "C" PRIMARY KEY,
    variables text COLLATE "C" NOT NULL
);

-- --- the cluster

CREATE TABLE tenants (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL
);

CREATE TABLE nodes (
    id text COLLATE "C" PRIMARY KEY,
    ordinal bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    cpu_milli bigint NOT NULL,
    memory_mb bigint NOT NULL,
    node text COLLATE "C" NOT NULL
);

CREATE TABLE pools (
    pool text COLLATE "C" PRIMARY KEY,
    percent bigint NOT NULL,
    elastic smallint NOT NULL
);

CREATE TABLE allocations (
    id text COLLATE "C" PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    task bigint,
    attempt bigint NOT NULL,
    start_ms bigint NOT NULL,
    placements text COLLATE "C" NOT NULL
);

-- The place and the time that a job which waits was promised: a restart must not move them.
CREATE TABLE promises (
    job_id text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    at_ms bigint NOT NULL,
    promise text COLLATE "C" NOT NULL
);

-- What people have reserved, and what waiting jobs were told.
CREATE TABLE reservations (
    id text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    reservation text COLLATE "C" NOT NULL
);

CREATE TABLE estimates (
    job_id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    made_ms bigint NOT NULL,
    promised_ms bigint NOT NULL,
    basis text COLLATE "C" NOT NULL,
    start_ms bigint
);

CREATE INDEX estimates_by_start ON estimates (start_ms);

-- --- accounts

-- The totals are those of ledger.accounts, in its order; the view account_totals names them.
CREATE TABLE usage (
    period_ms bigint,
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C",
    totals text COLLATE "C" NOT NULL,
    UNIQUE NULLS NOT DISTINCT (period_ms, tenant, "user")
);

CREATE TABLE shares (
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C",
    usage double precision NOT NULL,
    recent double precision NOT NULL,
    rate bigint NOT NULL,
    as_of_ms bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (tenant, "user")
);

CREATE TABLE week_usage (
    tenant text COLLATE "C" NOT NULL,
    "user" text COLLATE "C",
    week_ms bigint NOT NULL,
    gpu_milli_ms bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (tenant, "user")
);

-- --- what was measured

-- What readings of devices add up to. Times that were measured are in milliseconds, energy is in
-- microjoules, and a per cent over a time is their product; the views below have plain numbers.

-- One row for each attempt on devices that tell something, also while it runs (then it is written
-- about once a minute). Sums are over all its devices; power is divided between the jobs on a device
-- by their shares. gpu_ms or power_ms of 0: not measured.
CREATE TABLE attempt_measures (
    allocation_id text COLLATE "C" PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    task bigint,
    attempt bigint NOT NULL,
    warning text COLLATE "C" NOT NULL,
    gpu_ms bigint NOT NULL,
    busy_percent_ms bigint NOT NULL,
    peak_percent bigint NOT NULL,
    power_ms bigint NOT NULL,
    energy_uj bigint NOT NULL,
    peak_memory_mb bigint NOT NULL
);

CREATE INDEX attempt_measures_by_job ON attempt_measures (job_id, task, attempt);

-- One row for each device and hour in which it was read; the present hour is written about once a
-- minute.
CREATE TABLE device_hours (
    hour_ms bigint NOT NULL,
    node_id text COLLATE "C" NOT NULL,
    device bigint NOT NULL,
    read_ms bigint NOT NULL,
    gpu_ms bigint NOT NULL,
    busy_percent_ms bigint NOT NULL,
    peak_percent bigint NOT NULL,
    memory_mb_ms bigint NOT NULL,
    peak_memory_mb bigint NOT NULL,
    power_ms bigint NOT NULL,
    energy_uj bigint NOT NULL,
    peak_power_mw bigint NOT NULL,
    peak_temperature_c bigint NOT NULL,
    held_milli_ms bigint NOT NULL,
    PRIMARY KEY (hour_ms, node_id, device)
);

-- --- requests and history

CREATE TABLE answers (
    "user" text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    request_hash text COLLATE "C" NOT NULL,
    status bigint NOT NULL,
    body text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY ("user", key)
);

CREATE INDEX answers_by_age ON answers (at_ms);

-- History is only ever appended to. One row holds the events of one commit, as a JSON array of
-- [at_ms, kind, job_id, task, user, data]; the view events has one row for each.
CREATE TABLE history (
    first_sequence bigint PRIMARY KEY,
    last_sequence bigint NOT NULL,
    newest_ms bigint NOT NULL,
    events text COLLATE "C" NOT NULL
);

-- Notifications that wait to be delivered, and how far history has been read for them.
CREATE TABLE notices (
    id text COLLATE "C" PRIMARY KEY,
    target text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    document text COLLATE "C" NOT NULL,
    next_ms bigint NOT NULL,
    tries bigint NOT NULL,
    error text COLLATE "C" NOT NULL
);

CREATE TABLE cursors (
    name text COLLATE "C" PRIMARY KEY,
    sequence bigint NOT NULL,
    note text COLLATE "C" NOT NULL
);

-- Tokens (by the hash of their secrets, which nobody keeps), and who changed what or tried to.
CREATE TABLE tokens (
    id text COLLATE "C" PRIMARY KEY,
    secret_hash text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    uid bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL,
    created_by text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    last_used_ms bigint NOT NULL,
    revoked_ms bigint NOT NULL
);

CREATE TABLE audit (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    origin text COLLATE "C" NOT NULL,
    via text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    detail text COLLATE "C" NOT NULL,
    count bigint NOT NULL
);

-- --- for people

CREATE FUNCTION at_ms(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT
RETURN to_timestamp(ms / 1000.0);

CREATE VIEW events AS
SELECT
    history.first_sequence + event.place - 1 AS sequence,
    at_ms((event.value ->> 0)::bigint) AS at,
    event.value ->> 1 AS kind,
    event.value ->> 2 AS job_id,
    (event.value ->> 3)::bigint AS task,
    event.value ->> 4 AS "user",
    event.value -> 5 AS data
FROM history, json_array_elements(history.events::json) WITH ORDINALITY AS event (value, place);

CREATE VIEW queue AS
SELECT
    number, id, name, tenant, "user", priority, gpu_milli / 1000.0 AS gpu_count,
    at_ms(submit_ms) AS submitted, reason, command
FROM jobs
WHERE ended = 0 AND state = 'pending'
ORDER BY priority DESC, number;

CREATE VIEW job_times AS
SELECT
    number, id, name, tenant, "user", state,
    at_ms(submit_ms) AS submitted,
    at_ms(first_start_ms) AS first_started,
    at_ms(start_ms) AS started,
    at_ms(end_ms) AS ended,
    (first_start_ms - submit_ms) / 1000.0 AS waited_seconds,
    (end_ms - start_ms) / 1000.0 AS ran_seconds,
    exit_code, signal
FROM jobs;

CREATE VIEW job_specs AS
SELECT jobs.number, jobs.id, jobs.command, specs.spec, launches.launch, jobs.life
FROM jobs
JOIN specs ON specs.id = jobs.spec
LEFT JOIN launches ON launches.id = jobs.launch;

CREATE VIEW tenant_quotas AS
SELECT
    id,
    tenant::json ->> 'name' AS name,
    tenant::json ->> 'tier' AS tier,
    (tenant::json #>> '{quota,gpu_milli}')::bigint / 1000.0 AS max_gpus
FROM tenants;

CREATE VIEW gpus AS
SELECT
    nodes.id AS node,
    (device ->> 'index')::bigint AS gpu,
    device ->> 'uuid' AS uuid,
    device ->> 'model' AS model,
    (device ->> 'memory_mb')::bigint AS memory_mb,
    device ->> 'mode' AS mode,
    device ->> 'health' AS health,
    (device ->> 'paused')::boolean AS paused,
    (device ->> 'hot')::boolean AS hot,
    device ->> 'temperature_c' AS temperature_c,
    device #>> '{foreign,pid}' AS foreign_pid,
    device #>> '{foreign,user}' AS foreign_user
FROM nodes, json_array_elements(nodes.node::json -> 'devices') AS device
ORDER BY nodes.ordinal, 2;

CREATE VIEW allocated_gpus AS
SELECT
    allocations.id AS allocation, allocations.job_id, allocations.task, allocations.attempt,
    (placement ->> 'member')::bigint AS member,
    placement ->> 'node_id' AS node,
    (device ->> 'index')::bigint AS gpu,
    (device ->> 'share_milli')::bigint / 1000.0 AS share,
    (device ->> 'memory_mb')::bigint AS memory_mb,
    at_ms(allocations.start_ms) AS since
FROM
    allocations,
    json_array_elements(allocations.placements::json) AS placement,
    json_array_elements(placement -> 'devices') AS device;

CREATE VIEW attempt_gpus AS
SELECT
    attempts.allocation_id AS allocation, attempts.job_id, attempts.task, attempts.attempt,
    (placement ->> 'member')::bigint AS member,
    placement ->> 'node_id' AS node,
    (device ->> 'index')::bigint AS gpu,
    (device ->> 'share_milli')::bigint / 1000.0 AS share,
    (device ->> 'memory_mb')::bigint AS memory_mb
FROM
    attempts,
    json_array_elements(attempts.placements::json) AS placement,
    json_array_elements(placement -> 'devices') AS device;

CREATE VIEW account_totals AS
SELECT
    at_ms(period_ms)::date AS period, tenant, "user",
    (totals::json ->> 0)::numeric / 3600000000.0 AS gpu_hours,
    (totals::json ->> 1)::numeric / 3600000.0 / 1024 AS gpu_memory_gb_hours,
    (totals::json ->> 2)::numeric / 3600000000.0 AS cpu_hours,
    (totals::json ->> 4)::bigint AS completed,
    (totals::json ->> 5)::bigint AS failed,
    (totals::json ->> 6)::bigint AS cancelled,
    (totals::json ->> 7)::bigint AS preemptions
FROM usage;

CREATE VIEW measured_attempts AS
SELECT
    allocation_id, job_id, task, attempt,
    CASE WHEN power_ms > 0 THEN energy_uj / 3600000000.0 END AS energy_wh,
    CASE WHEN gpu_ms > 0 THEN busy_percent_ms * 1.0 / gpu_ms END AS mean_utilisation,
    CASE WHEN gpu_ms > 0 THEN peak_percent END AS peak_utilisation,
    peak_memory_mb,
    warning
FROM attempt_measures;

CREATE VIEW gpu_hours AS
SELECT
    at_ms(hour_ms) AS hour,
    node_id AS node,
    device AS gpu,
    read_ms / 60000.0 AS minutes_read,
    CASE WHEN gpu_ms > 0 THEN busy_percent_ms * 1.0 / gpu_ms END AS mean_utilisation,
    CASE WHEN gpu_ms > 0 THEN peak_percent END AS peak_utilisation,
    memory_mb_ms * 1.0 / nullif(read_ms, 0) AS mean_memory_mb,
    peak_memory_mb,
    CASE WHEN power_ms > 0 THEN energy_uj / 3600000000.0 END AS energy_wh,
    peak_power_mw / 1000.0 AS peak_power_watts,
    peak_temperature_c,
    held_milli_ms / 3600000000.0 AS held_gpu_hours
FROM device_hours;
