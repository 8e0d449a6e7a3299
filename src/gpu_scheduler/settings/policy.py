"""Settings about who comes first, and who may have how much."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting

PRESETS = (
    *("fair", "fifo", "sjf", "srtf", "las", "skip", "easy", "conservative"),
    *("random", "dot_product", "clustering", "packing", "best_fit", "fgd"),
    *("balance", "short", "feedback"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Who comes first."""

    preset: str = setting(
        "fair", "The policy, as in `tgpu simulate --list-policies`.", choices=PRESETS
    )
    online_percent: int = setting(
        100,
        "Per cent of the GPUs that jobs of the online pool may hold, for the first start; later "
        "on, `PUT /api/v1/quota` changes it.",
        least=0,
        most=100,
    )
    batch_percent: int = setting(
        100,
        "Per cent of the GPUs that jobs of the batch pool may hold, for the first start; later "
        "on, `PUT /api/v1/quota` changes it.",
        least=0,
        most=100,
    )
    elastic: bool = setting(
        default=True, about="What one pool leaves idle is lent to the other, and taken back."
    )
    interactive_preemption: bool = setting(
        default=True,
        about="Interactive jobs (`--interactive`, `tgpu shell`) may stop batch jobs of their own "
        "tenant that can be preempted, up to `interactive_max_gpus`, for want of room or because "
        "the tenant is at a limit. Needs `enable_preemption` and a policy that preempts by class, "
        "such as `fair`.",
    )
    interactive_max_gpus: float = setting(
        1.0,
        "So many GPUs a user may hold with interactive jobs when another one stops batch jobs, "
        "itself included.",
        least=0.01,
        most=100_000,
    )
    fill_reservation_gaps: bool = setting(
        default=True,
        about="Before reserved GPUs are due, jobs that can be preempted may use them if they are "
        "expected to end in time; off, only jobs whose limit ends in time.",
    )
    usage_half_life_hours: float = setting(
        168.0, "After this time past use counts half in the fair share.", least=0.01, most=87_600
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What every user may have, in a tenant that says nothing else; 0 means no limit."""

    user_max_gpus: float = setting(0.0, "GPUs at once.", least=0, most=1_000_000)
    user_max_jobs: int = setting(0, "Jobs that run at once.", least=0, most=1_000_000)
    user_max_pending_jobs: int = setting(
        0,
        "Jobs that wait (an array counts as its tasks); more are refused.",
        least=0,
        most=100_000_000,
    )
    user_max_gpu_hours: float = setting(
        0.0,
        "Budget of GPU-hours for a period; a job that runs counts with its whole time limit.",
        least=0,
        most=1_000_000_000,
    )
    budget_period: str = setting(
        "total",
        "For how long budgets last, also those of tenants that state no other: `total` is for "
        "ever, weeks begin on Monday and months on the first, at midnight UTC.",
        choices=("total", "week", "month"),
    )
