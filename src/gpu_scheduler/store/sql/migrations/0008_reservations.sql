-- What people have reserved, what was promised to waiting jobs, and what budgets of a week have seen.

CREATE TABLE reservations (
    id TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    reservation TEXT NOT NULL,
    tenant TEXT GENERATED ALWAYS AS (json_extract(reservation, '$.tenant')) VIRTUAL,
    start_ms INTEGER GENERATED ALWAYS AS (json_extract(reservation, '$.start_ms')) VIRTUAL,
    end_ms INTEGER GENERATED ALWAYS AS (json_extract(reservation, '$.end_ms')) VIRTUAL
) STRICT;

CREATE TABLE estimates (
    job_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    made_ms INTEGER NOT NULL,
    promised_ms INTEGER NOT NULL,
    basis TEXT NOT NULL,
    start_ms INTEGER
) STRICT;

CREATE INDEX estimates_by_start ON estimates (start_ms);

CREATE TABLE week_usage (
    tenant TEXT NOT NULL,
    user TEXT,
    week_ms INTEGER NOT NULL,
    gpu_milli_ms INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX week_usage_account ON week_usage (tenant, user IS NULL, ifnull(user, ''));
