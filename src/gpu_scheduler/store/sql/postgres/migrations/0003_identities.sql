-- How nodes are known: the authority that vouches for them, tokens to join with, and their keys.

CREATE TABLE identities (
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    identity text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, id)
);
