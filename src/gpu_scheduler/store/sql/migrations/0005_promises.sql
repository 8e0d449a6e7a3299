-- The place and the time that a job which waits was promised: a restart must not move them.

CREATE TABLE promises (
    job_id TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    promise TEXT NOT NULL
) STRICT;
