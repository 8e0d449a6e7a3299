-- What reports ask for: attempts by their end, and the models of GPUs that they held.

ALTER TABLE attempts ADD COLUMN gpu_models TEXT NOT NULL DEFAULT '[]';

CREATE INDEX attempts_by_end ON attempts (end_ms, allocation_id);
