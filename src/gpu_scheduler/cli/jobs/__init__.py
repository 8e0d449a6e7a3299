"""Commands about jobs that exist: list, show, logs, cancel, wait, sweeps."""
