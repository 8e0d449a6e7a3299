"""Settings about when the scheduler decides, who comes first, and who may have how much."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.fields import DAY_S, Price, PriceChange, setting, table

PRESETS = (
    *("fair", "fifo", "sjf", "srtf", "las", "skip", "easy", "conservative"),
    *("random", "dot_product", "clustering", "packing", "best_fit", "fgd"),
    *("balance", "short", "feedback"),
)
WHOLE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """When the scheduler decides, and what it may do."""

    scheduling_interval_ms: int = setting(
        1000,
        "At the latest after this time the queue is looked at again; a change does so at once.",
        least=10,
        most=600_000,
    )
    max_queue_size: int = setting(
        1_000_000,
        "Most tasks that may wait; a submission beyond that is refused as `queue_full`.",
        least=1,
        most=100_000_000,
        note="10,000 was asked for elsewhere; an array of a million tasks must fit, so that loses.",
    )
    enable_preemption: bool = setting(
        default=True, about="A job of a higher class may stop one of a lower class."
    )
    enable_gang_scheduling: bool = setting(
        default=True, about="Jobs of several members are accepted; off, they are refused."
    )
    enable_thermal_aware: bool = setting(
        default=True, about="Devices above `thermal_threshold` get no new work."
    )
    thermal_threshold: float = setting(
        75.0, "Above this temperature in degrees Celsius a device is hot.", least=20, most=120
    )
    thermal_hysteresis: float = setting(
        5.0, "A hot device is used again once it is this much cooler.", least=0, most=50
    )
    num_gpus: int = setting(
        0,
        "Use only the first so many devices of this machine; 0 uses all that are found.",
        least=0,
        most=1024,
        note="8 was asked for elsewhere; what the machine has wins.",
    )
    max_workers: int = setting(
        8,
        "So many starts (prolog, container, spawn) may be under way at once on this machine.",
        least=1,
        most=1024,
    )
    worker_timeout_s: float = setting(
        300.0,
        "A start that takes longer has failed, and the job is tried again.",
        least=1,
        most=DAY_S,
    )
    job_timeout_s: float = setting(
        7 * DAY_S,
        "Limit of jobs that state none.",
        least=1,
        most=3650 * DAY_S,
        note="3,600 was asked for elsewhere; nobody expects a training run to end after an hour.",
    )
    graceful_shutdown_timeout_s: float = setting(
        30.0,
        "How long a stopping server waits for open requests; jobs are left alone.",
        least=0,
        most=3600,
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

    def check(self) -> None:
        """Refuse pools that would have more than there is; one at 100 has no limit of its own."""
        parts = (self.online_percent, self.batch_percent)
        if WHOLE not in parts and sum(parts) > WHOLE:
            raise InvalidRequest(
                f"policy.online_percent is {parts[0]} and policy.batch_percent is {parts[1]}, "
                f"which is {sum(parts)} per cent of the GPUs; together they may have 100 at the "
                "most"
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


# --- Settings of prices, for reports and invoices.


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Prices, for reports and invoices."""

    currency: str = setting("EUR", "What prices are in.")
    gpu_hour: dict[str, float] = table(  # noqa: RUF009
        Price, "Price of a GPU for an hour, by model, as `tgpu gpus` names it."
    )
    other_gpu_hour: float = setting(
        0.0, "Price of a GPU of any other model for an hour.", least=0, most=1_000_000
    )
    cpu_hour: float = setting(0.0, "Price of a CPU core for an hour.", least=0, most=1_000_000)
    memory_gb_hour: float = setting(
        0.0, "Price of a GiB of memory for an hour.", least=0, most=1_000_000
    )
    kwh: float = setting(
        0.0, "Price of a kWh that GPUs have drawn; 0: not charged.", least=0, most=1_000_000
    )
    changes: dict[str, PriceChange] = table(  # noqa: RUF009
        PriceChange,
        "New prices from a day on, by any name; the prices above hold until the first of them.",
        note="Add a change rather than edit a price: what was used before then costs what it did.",
    )
