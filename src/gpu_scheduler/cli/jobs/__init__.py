"""Commands about jobs that exist: list, show, wait, logs, cancel, update, sweeps.

`columns` holds the texts that show a job, and the job ids that users write. New jobs are made in
`submit`.
"""
