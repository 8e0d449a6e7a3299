-- Tokens (by the hash of their secrets, which nobody keeps), and who changed what or tried to.

CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY,
    secret_hash TEXT NOT NULL,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    last_used_ms INTEGER NOT NULL,
    revoked_ms INTEGER NOT NULL
) STRICT;

-- Written with every change, so it has no index: it is read from its end.
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    user TEXT NOT NULL,
    origin TEXT NOT NULL,
    via TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    outcome TEXT NOT NULL,
    code TEXT NOT NULL,
    detail TEXT NOT NULL,
    count INTEGER NOT NULL
) STRICT;
