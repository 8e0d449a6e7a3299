"""Builders of small runs: an outcome that says only what a test is about."""

from gpu_scheduler.simulator.outcomes import NO_PROMISE, Outcome, Run, Sample


def an_outcome(
    *,
    submit_s: int = 0,
    wait_s: int = 0,
    run_s: int = 100,
    lost_s: int = 0,
    gpus: int = 1,
    tenant: str = "t",
    partition: str = "main",
    preemptions: int = 0,
    promised_s: int | None = None,
) -> Outcome:
    """A job that waits, starts once and runs to its end."""
    return Outcome(
        partition=partition,
        tenant=tenant,
        user="u",
        gpu_milli=gpus * 1000,
        submit_ms=submit_s * 1000,
        first_start_ms=(submit_s + wait_s) * 1000,
        end_ms=(submit_s + wait_s + run_s + lost_s) * 1000,
        wait_ms=wait_s * 1000,
        run_ms=run_s * 1000,
        preemptions=preemptions,
        lost_ms=lost_s * 1000,
        promised_start_ms=NO_PROMISE if promised_s is None else promised_s * 1000,
    )


def a_sample(
    at_s: int,
    *,
    waiting: int = 0,
    waiting_gpus: int = 0,
    allocated: int = 0,
    fragmented: int = 0,
) -> Sample:
    """The state of a partition, in seconds and whole GPUs."""
    return Sample(
        at_ms=at_s * 1000,
        waiting_jobs=waiting,
        waiting_gpu_milli=waiting_gpus * 1000,
        running_jobs=0,
        allocated_gpu_milli=allocated * 1000,
        fragmented_gpu_milli=fragmented * 1000,
    )


def a_run(
    *outcomes: Outcome,
    policy: str = "fifo",
    workload: str = "work",
    gpus: int = 4,
    samples: dict[str, list[Sample]] | None = None,
    partition_gpus: dict[str, int] | None = None,
) -> Run:
    """A run with these outcomes."""
    run = Run(
        policy=policy,
        workload=workload,
        capacity_gpu_milli=gpus * 1000,
        samples=samples or {},
        partition_gpu_milli={name: count * 1000 for name, count in (partition_gpus or {}).items()},
    )
    for outcome in outcomes:
        run.outcomes.add(outcome)
    return run


def a_busy_run(policy: str, *, jobs: int = 60, stretch: int = 1) -> Run:
    """A run with two tenants, queues, forecasts, preemptions and samples."""
    outcomes = (
        an_outcome(
            submit_s=number * 60,
            wait_s=number * 20 * stretch,
            run_s=300 + number,
            gpus=1 + number % 2,
            tenant=("vision", "nlp")[number % 2],
            preemptions=int(number % 10 == 9),
            lost_s=30 * int(number % 10 == 9),
            promised_s=number * 60 + number * 18,
        )
        for number in range(jobs)
    )
    samples = [
        a_sample(
            number * 60,
            waiting=number % 5,
            waiting_gpus=number % 7,
            allocated=number % 5,
            fragmented=number % 2,
        )
        for number in range(jobs)
    ]
    return a_run(*outcomes, policy=policy, samples={"main": samples})
