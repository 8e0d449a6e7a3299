-- Services with their replicas, each as one value.

CREATE TABLE services (
    id text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    service text COLLATE "C" NOT NULL
);
