-- How nodes are known: the authority that vouches for them, tokens to join with, and their keys.

CREATE TABLE identities (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    identity TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT;
