"""Settings of what the server reads and writes, and for how long it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Files that the server reads and writes."""

    state_dir: str = setting(
        "",
        "Directory of all state; empty: `/var/lib/gpu-scheduler` for root, else by XDG.",
    )
    jobs_file: str = setting(
        "",
        "A jobs.txt whose new lines are submitted; empty: none is watched.",
        note="jobs.txt was asked for elsewhere; a file that is found by chance should not run.",
    )
    llm_config_file: str = setting(
        "llm_config.json",
        "GPUs by model name, for jobs.txt and `tgpu add`; a missing file means one GPU each.",
    )
    state_file: str = setting(
        "scheduler.db",
        "Name of the SQLite database in the state directory.",
        note="gpu_scheduler_state.json was asked for elsewhere; state is a database here.",
    )
    log_file: str = setting(
        "",
        "The server's own log; empty: standard error, or server.log with `--daemon`.",
        note="gpu_scheduler.log was asked for elsewhere; a service's log belongs to its keeper.",
    )
    monitor_interval_s: float = setting(
        30.0, "How often `jobs_file` and `llm_config_file` are looked at.", least=1, most=86_400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What the server says about itself."""

    level: str = setting("INFO", "The least important lines that are written.", choices=LEVELS)
    structured: bool = setting(
        default=True, about="Lines are JSON, except on a terminal, which gets readable ones."
    )
    max_log_size_mb: float = setting(
        100.0, "The server's log file is rotated at this size.", least=0.1, most=100_000
    )
    backup_count: int = setting(5, "How many rotated log files are kept.", least=0, most=1000)
    metrics_enabled: bool = setting(
        default=True, about="The metrics port is open; off, only `/metrics` of the API is."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long things are kept."""

    archive_after_days: float = setting(
        30.0, "Jobs that ended so long ago move to the archive.", least=0.01, most=36_500
    )
    events_days: float = setting(90.0, "Events are dropped after this.", least=0.01, most=36_500)
    logs_days: float = setting(
        30.0, "Output of ended jobs is dropped after this.", least=0.01, most=36_500
    )
    audit_days: float = setting(
        365.0,
        "Who changed what, and what was refused, is kept for this long.",
        least=0.01,
        most=36_500,
    )
    readings_days: float = setting(
        400.0, "Hourly readings of devices are dropped after this.", least=0.01, most=36_500
    )
    environments_days: float = setting(
        7.0,
        "Captured environments of ended jobs are dropped after this; they can hold secrets.",
        least=0,
        most=36_500,
    )
