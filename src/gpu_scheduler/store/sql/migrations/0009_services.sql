-- Services with their replicas, each as one value.

CREATE TABLE services (
    id TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    service TEXT NOT NULL,
    tenant TEXT GENERATED ALWAYS AS (json_extract(service, '$.tenant')) VIRTUAL,
    name TEXT GENERATED ALWAYS AS (json_extract(service, '$.name')) VIRTUAL
) STRICT;
