"""Settings of notifications: who is told what, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.notice import OF_JOBS
from gpu_scheduler.settings.field import DAY_S, LAST_PORT, setting, table
from gpu_scheduler.settings.forms import Target


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
