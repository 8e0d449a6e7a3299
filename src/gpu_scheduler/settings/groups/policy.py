"""Settings of scheduling: cycles, policy, limits of users, prices."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.fields import DAY_S, Price, PriceChange, setting, table

PRESET_NAMES = (
    *("fair", "fifo", "sjf", "srtf", "las", "skip", "easy", "conservative"),
    *("random", "dot_product", "clustering", "packing", "best_fit", "fgd"),
    *("balance", "short", "feedback"),
)
WHOLE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Scheduling cycles and what the scheduler may do."""

    scheduling_interval_ms: int = setting(
        1000,
        "Longest time between two scheduling cycles; a change starts a cycle at once.",
        least=10,
        most=600_000,
    )
    max_queue_size: int = setting(
        1_000_000,
        "Maximum number of waiting tasks; further submissions are rejected as `queue_full`.",
        least=1,
        most=100_000_000,
        note="The default fits an array of a million tasks. `limits.user_queue_percent` is the part"
        " that one user may fill.",
    )
    enable_preemption: bool = setting(
        default=True, about="A job of a higher class may preempt one of a lower class."
    )
    enable_gang_scheduling: bool = setting(
        default=True, about="Accept jobs with several members. Off: they are rejected."
    )
    enable_thermal_aware: bool = setting(
        default=True, about="GPUs above `thermal_threshold` get no new work."
    )
    thermal_threshold: float = setting(
        75.0, "Temperature in degrees Celsius above which a GPU is hot.", least=20, most=120
    )
    thermal_hysteresis: float = setting(
        5.0, "A hot GPU is used again once it is this many degrees cooler.", least=0, most=50
    )
    num_gpus: int = setting(
        0,
        "Use only this many GPUs of this machine, starting with the first; 0: all.",
        least=0,
        most=1024,
        note="By default all GPUs of the machine are used. In a `LocalScheduler` on a machine "
        "without a GPU driver, this many GPUs are simulated.",
    )
    max_workers: int = setting(
        8,
        "Maximum number of concurrent starts (prolog, container, process) on this machine.",
        least=1,
        most=1024,
    )
    worker_timeout_s: float = setting(
        300.0,
        "A start that takes longer has failed, and the job is retried.",
        least=1,
        most=DAY_S,
    )
    job_timeout_s: float = setting(
        7 * DAY_S,
        "Time limit of jobs without a time limit of their own.",
        least=1,
        most=3650 * DAY_S,
        note="The default fits long training runs.",
    )
    graceful_shutdown_timeout_s: float = setting(
        30.0,
        "How long a stopping server waits for open requests; jobs keep running.",
        least=0,
        most=3600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Scheduling policy and pools."""

    preset: str = setting(
        "fair",
        "Scheduling policy; `tgpu simulate --list-policies` lists them.",
        choices=PRESET_NAMES,
    )
    online_percent: int = setting(
        100,
        "Percentage of the GPUs for jobs of the online pool. Used at the first start; later change"
        " it with `PUT /api/v1/quota`.",
        least=0,
        most=100,
    )
    batch_percent: int = setting(
        100,
        "Percentage of the GPUs for jobs of the batch pool. Used at the first start; later change "
        "it with `PUT /api/v1/quota`.",
        least=0,
        most=100,
    )
    elastic: bool = setting(
        default=True,
        about="A pool may borrow idle GPUs of the other pool, which reclaims them when needed.",
    )
    interactive_preemption: bool = setting(
        default=True,
        about="Interactive jobs (`--interactive`, `tgpu shell`) may preempt preemptible batch jobs"
        " of their own tenant, up to `interactive_max_gpus`, if no GPU is free or the tenant is at"
        " its quota. Needs `enable_preemption` and a policy that preempts by class, such as "
        "`fair`.",
    )
    interactive_max_gpus: float = setting(
        1.0,
        "Maximum number of GPUs of a user's interactive jobs, including the new one, when it "
        "preempts batch jobs.",
        least=0.01,
        most=100_000,
    )
    fill_reservation_gaps: bool = setting(
        default=True,
        about="Before a reservation starts, preemptible jobs may use its GPUs if they are expected"
        " to end in time. Off: only jobs whose time limit ends in time.",
    )
    learned_run_times: bool = setting(
        default=True,
        about="Train a model of run times from the ended jobs if the extra `learned` is installed,"
        " and predict by it where it proves better than the statistics of past jobs; "
        "`tgpu report --predictors` shows where.",
    )
    predictive_preemption: bool = setting(
        default=False,
        about="Choose the jobs to preempt also by their expected remaining run time and by what a "
        "restart costs, and spare a job that should end before its preemption pays off. Only for "
        "policies that preempt by class, such as `fair`.",
    )
    restart_cost_s: float = setting(
        60.0,
        "Run time that a preempted job loses when it resumes, besides the work since its last "
        "checkpoint: loading its state, filling caches. For `predictive_preemption`.",
        least=0,
        most=DAY_S,
    )
    checkpoint_interval_s: float = setting(
        0.0,
        "How often jobs that report no checkpoints are taken to save their work; 0: never. For "
        "`predictive_preemption`.",
        least=0,
        most=DAY_S,
    )
    usage_half_life_hours: float = setting(
        168.0, "Half-life of past usage in the fair share.", least=0.01, most=87_600
    )

    def check(self) -> None:
        """Reject pools with more than 100 per cent together; a pool at 100 has no limit."""
        parts = (self.online_percent, self.batch_percent)
        if WHOLE not in parts and sum(parts) > WHOLE:
            raise InvalidRequest(
                f"policy.online_percent is {parts[0]} and policy.batch_percent is {parts[1]}, "
                f"which is {sum(parts)} per cent of the GPUs; together they must not exceed 100"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits of every user, in a tenant without limits of its own; 0: no limit."""

    user_max_gpus: float = setting(0.0, "GPUs at the same time.", least=0, most=1_000_000)
    user_max_jobs: int = setting(0, "Running jobs at the same time.", least=0, most=1_000_000)
    user_max_pending_jobs: int = setting(
        0,
        "Waiting jobs (an array counts as its tasks); more are rejected.",
        least=0,
        most=100_000_000,
    )
    user_max_priority: int = setting(
        10_000,
        "Highest priority that a user who is no admin may give to a job; 2500 is `urgent`, 750 "
        "`normal`. Set it where users compete: a job of a higher priority comes first, and may "
        "preempt preemptible jobs of others (not within the guarantee of another tenant).",
        least=0,
        most=10_000,
    )
    user_queue_percent: int = setting(
        50,
        "Waiting jobs of a user without `user_max_pending_jobs`, as a percentage of the places that"
        " other users leave in the queue; 100: no limit. It does not apply to admins, who include "
        "the user of a server that serves only its owner.",
        least=1,
        most=100,
    )
    tenant_queue_percent: int = setting(
        75,
        "The same for all users of a tenant without `max_pending_jobs`, and the places that other "
        "tenants leave. It applies where there are several tenants.",
        least=1,
        most=100,
    )
    admin_queue_percent: int = setting(
        1, "Percentage of the places in the queue that only admins may fill.", least=0, most=90
    )
    user_max_gpu_hours: float = setting(
        0.0,
        "Budget of GPU-hours per period; a running job counts with its whole time limit.",
        least=0,
        most=1_000_000_000,
    )
    budget_period: str = setting(
        "total",
        "Period of budgets, also for tenants without one of their own: `total` never ends, weeks "
        "begin on Monday and months on the first, at midnight UTC.",
        choices=("total", "week", "month"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Prices for reports and invoices."""

    currency: str = setting("EUR", "Currency of prices.")
    gpu_hour: dict[str, float] = table(  # noqa: RUF009
        Price, "Price of a GPU-hour by model, as shown by `tgpu gpus`."
    )
    other_gpu_hour: float = setting(
        0.0, "Price of a GPU-hour of any other model.", least=0, most=1_000_000
    )
    cpu_hour: float = setting(0.0, "Price of a CPU core for an hour.", least=0, most=1_000_000)
    memory_gb_hour: float = setting(
        0.0, "Price of a GiB of memory for an hour.", least=0, most=1_000_000
    )
    kwh: float = setting(
        0.0, "Price of a kWh used by GPUs; 0: not charged.", least=0, most=1_000_000
    )
    changes: dict[str, PriceChange] = table(  # noqa: RUF009
        PriceChange,
        "Price changes by any name, each from a given day on; the prices above apply until the "
        "first change.",
        note="Add a change instead of editing a price: earlier usage keeps its price.",
    )
