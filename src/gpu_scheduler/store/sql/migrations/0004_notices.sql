-- Notifications that wait to be delivered, and how far history has been read for them.

CREATE TABLE notices (
    id TEXT NOT NULL PRIMARY KEY,
    target TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    document TEXT NOT NULL,
    next_ms INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    error TEXT NOT NULL
) STRICT;

CREATE TABLE cursors (
    name TEXT NOT NULL PRIMARY KEY,
    sequence INTEGER NOT NULL,
    note TEXT NOT NULL
) STRICT;
