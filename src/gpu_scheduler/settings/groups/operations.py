"""Settings of operation: files, logging, retention and notifications."""

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
        "State directory; empty: `/var/lib/gpu-scheduler` for root, else by XDG.",
    )
    jobs_file: str = setting(
        "",
        "A jobs.txt whose new lines are submitted; empty: no file is watched.",
        note="No file by default: a file that happens to exist should not run.",
    )
    llm_config_file: str = setting(
        "llm_config.json",
        "File with the number of GPUs by model name, for jobs.txt and `tgpu add`; without it each "
        "job gets one GPU.",
    )
    state_file: str = setting(
        "scheduler.db",
        "Name of the SQLite database in the state directory.",
        note="State is a database, not a JSON file.",
    )
    log_file: str = setting(
        "",
        "Log file of the server; empty: standard error, or server.log with `--daemon`.",
        note="By default the service manager keeps the log.",
    )
    monitor_interval_s: float = setting(
        30.0, "How often `jobs_file` and `llm_config_file` are read.", least=1, most=86_400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """The server's log and metrics."""

    level: str = setting("INFO", "Lowest level that is logged.", choices=LEVELS)
    structured: bool = setting(
        default=True, about="Log JSON lines, except on a terminal, which gets readable lines."
    )
    max_log_size_mb: float = setting(
        100.0, "The server's log file is rotated at this size.", least=0.1, most=100_000
    )
    backup_count: int = setting(5, "Number of rotated log files that are kept.", least=0, most=1000)
    metrics_enabled: bool = setting(
        default=True, about="Open the metrics port. Off: metrics are only at `/metrics` of the API."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long data is kept."""

    archive_after_days: float = setting(
        30.0, "Jobs are archived this long after their end.", least=0.01, most=36_500
    )
    events_days: float = setting(
        90.0, "Events are deleted after this time.", least=0.01, most=36_500
    )
    logs_days: float = setting(
        30.0, "Logs of ended jobs are deleted after this time.", least=0.01, most=36_500
    )
    audit_days: float = setting(
        365.0,
        "Entries of the audit log (changes and rejected requests) are deleted after this time.",
        least=0.01,
        most=36_500,
    )
    readings_days: float = setting(
        400.0, "Hourly GPU measurements are deleted after this time.", least=0.01, most=36_500
    )
    environments_days: float = setting(
        7.0,
        "Captured environments of ended jobs are deleted after this time; they can contain "
        "secrets.",
        least=0,
        most=36_500,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """Notifications about jobs, GPUs and budgets."""

    targets: dict[str, Target] = table(Target, "Targets of notifications by name.")  # noqa: RUF009
    default_target: str = setting(
        "",
        "Target of `--notify end` without a target. Empty, or not available to the tenant: the "
        "only `for_jobs` target with this tenant in `tenants`, else the only `for_jobs` target.",
    )
    owner_events: tuple[str, ...] = setting(
        ("idle",),
        "Events of which owners are notified without having asked, at the default target; "
        "`--notify none` declines them.",
        choices=tuple(OF_JOBS),
    )
    allow_job_webhooks: bool = setting(
        default=False,
        about="Jobs may name an https URL of their own, as in `--notify end:https://...`; its "
        "address must be public.",
    )
    timeout_s: float = setting(10.0, "Timeout of one delivery attempt.", least=0.1, most=300)
    retry_first_s: float = setting(
        10.0, "First wait before another attempt; it doubles each time.", least=0.1, most=3600
    )
    retry_most_s: float = setting(900.0, "Longest wait between two attempts.", least=1, most=DAY_S)
    give_up_hours: float = setting(
        24.0,
        "A notification that is not delivered within this time is dropped, with an event.",
        least=0.001,
        most=720,
    )
    max_waiting: int = setting(
        10_000,
        "Maximum number of waiting notifications per target; more are dropped, with an event.",
        least=1,
        most=1_000_000,
    )
    budget_percent: int = setting(
        90, "Used percentage of a GPU-hour budget that causes a notification.", least=1, most=100
    )
    smtp_host: str = setting("localhost", "Host of the mail server.")
    smtp_port: int = setting(25, "Port of the mail server.", least=1, most=LAST_PORT)
    smtp_security: str = setting(
        "starttls",
        "Encryption of the connection: with STARTTLS (which the server must offer), TLS from the "
        "beginning, or none.",
        choices=("starttls", "tls", "none"),
        note="A relay on the same machine usually needs `none`.",
    )
    smtp_login_file: str = setting(
        "", "File with `user:password` for the mail server, mode 600; empty: no login."
    )
    mail_from: str = setting("", "Sender of mails; empty: gpu-scheduler@HOST.")
    ca_file: str = setting(
        "", "File with CA certificates to trust in addition to the system's, for https and mail."
    )
