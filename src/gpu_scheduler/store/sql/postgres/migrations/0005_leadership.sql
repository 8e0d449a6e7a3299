-- Which of several servers leads. Renewals change `until`, take-overs change `term`: as `term` is in
-- a unique index, only a take-over waits for commits, which hold the row with FOR KEY SHARE.
CREATE TABLE leadership (
    name text PRIMARY KEY,
    term bigint NOT NULL,
    holder text NOT NULL,
    address text NOT NULL,
    agents text NOT NULL,
    until timestamptz NOT NULL,
    UNIQUE (name, term)
) WITH (fillfactor = 10);
INSERT INTO leadership VALUES ('scheduler', 0, '', '', '', 'epoch');

-- All servers that said lately that they are there.
CREATE TABLE servers (
    name text PRIMARY KEY,
    address text NOT NULL,
    version text NOT NULL,
    seen timestamptz NOT NULL
);

-- What only the servers of this cluster know, to vouch for callers towards each other.
CREATE TABLE cluster_secrets (
    name text PRIMARY KEY,
    secret bytea NOT NULL
);
