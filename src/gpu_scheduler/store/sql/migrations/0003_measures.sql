-- What readings of devices add up to. Times that were measured are in milliseconds, energy is in
-- microjoules, and a per cent over a time is their product; the views below have plain numbers.

-- One row for each attempt on devices that tell something, also while it runs (then it is written
-- about once a minute). Sums are over all its devices; power is divided between the jobs on a device
-- by their shares. gpu_ms or power_ms of 0: not measured.
CREATE TABLE attempt_measures (
    allocation_id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    task INTEGER,
    attempt INTEGER NOT NULL,
    warning TEXT NOT NULL,
    gpu_ms INTEGER NOT NULL,
    busy_percent_ms INTEGER NOT NULL,
    peak_percent INTEGER NOT NULL,
    power_ms INTEGER NOT NULL,
    energy_uj INTEGER NOT NULL,
    peak_memory_mb INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_measures_by_job ON attempt_measures (job_id, task, attempt);

-- One row for each device and hour in which it was read; the present hour is written about once a
-- minute.
CREATE TABLE device_hours (
    hour_ms INTEGER NOT NULL,
    node_id TEXT NOT NULL,
    device INTEGER NOT NULL,
    read_ms INTEGER NOT NULL,
    gpu_ms INTEGER NOT NULL,
    busy_percent_ms INTEGER NOT NULL,
    peak_percent INTEGER NOT NULL,
    memory_mb_ms INTEGER NOT NULL,
    peak_memory_mb INTEGER NOT NULL,
    power_ms INTEGER NOT NULL,
    energy_uj INTEGER NOT NULL,
    peak_power_mw INTEGER NOT NULL,
    peak_temperature_c INTEGER NOT NULL,
    held_milli_ms INTEGER NOT NULL,
    PRIMARY KEY (hour_ms, node_id, device)
) STRICT, WITHOUT ROWID;

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
    datetime(hour_ms / 1000, 'unixepoch') AS hour,
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
