-- The queue is listed by priority.
CREATE INDEX jobs_by_priority ON jobs (priority DESC, number) WHERE ended = 0;
