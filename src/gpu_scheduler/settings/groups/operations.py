"""Settings of what the server reads and writes, and for how long it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.notification import OF_JOBS
from gpu_scheduler.settings.fields import DAY_S, LAST_PORT, Target, setting, table

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


# --- Settings of notifications: who is told what, and how it gets there.


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """Who is told what happens to jobs and GPUs."""

    targets: dict[str, Target] = table(Target, "Who can be told, by name.")  # noqa: RUF009
    default_target: str = setting(
        "",
        "Where `--notify end` goes if it names no target. Empty, or not for jobs of the tenant: to "
        "the only `for_jobs` target with this tenant in `tenants`, else the only `for_jobs` one.",
    )
    owner_events: tuple[str, ...] = setting(
        ("idle",),
        "What owners are told of their jobs without having asked, at the same target; "
        "`--notify none` wants nothing of it.",
        choices=tuple(OF_JOBS),
    )
    allow_job_webhooks: bool = setting(
        default=False,
        about="Jobs may name an https address of their own, as in `--notify end:https://...`; it "
        "must lie on the public network.",
    )
    timeout_s: float = setting(
        10.0, "A receiver that takes longer has failed, for this time.", least=0.1, most=300
    )
    retry_first_s: float = setting(
        10.0, "First wait before another try; it doubles.", least=0.1, most=3600
    )
    retry_most_s: float = setting(900.0, "Longest wait between two tries.", least=1, most=DAY_S)
    give_up_hours: float = setting(
        24.0,
        "A notification that could not be delivered for so long is given up, with an event.",
        least=0.001,
        most=720,
    )
    max_waiting: int = setting(
        10_000,
        "So many notifications may wait for one target; more are dropped, with an event.",
        least=1,
        most=1_000_000,
    )
    budget_percent: int = setting(
        90, "A budget of GPU-hours is nearly used from here on.", least=1, most=100
    )
    smtp_host: str = setting("localhost", "The mail server.")
    smtp_port: int = setting(25, "Its port.", least=1, most=LAST_PORT)
    smtp_security: str = setting(
        "starttls",
        "Whether the connection is encrypted: by STARTTLS (which the server then must offer), from "
        "its beginning, or not.",
        choices=("starttls", "tls", "none"),
        note="A relay on the same machine usually needs `none`.",
    )
    smtp_login_file: str = setting(
        "", "A file with `user:password` for the mail server, mode 600; empty: no login."
    )
    mail_from: str = setting("", "Sender of mails; empty: gpu-scheduler@ this machine.")
    ca_file: str = setting(
        "", "A file with certificates to trust besides the system's, for https and mail."
    )
