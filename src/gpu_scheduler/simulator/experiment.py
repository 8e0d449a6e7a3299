"""Experiments: run several policies on the same workload; a workload comes in, runs go out.

The command line, the tests and the benchmarks use these functions. Policies and partitions share
no state: each run of a partition gets a new predictor and an empty cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from random import Random
from time import perf_counter

from gpu_scheduler.engine.policy import DAY_MS, Policy, Ranking
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.packing import Filling, capacity_milli, fill, typical_shapes
from gpu_scheduler.simulator.predictors import Medians, Oracle, Stated
from gpu_scheduler.simulator.traces.openb import Pod, arrivals
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload
from gpu_scheduler.simulator.world import Physics, World

NO_LIMIT_MS = 3_650 * DAY_MS
"""Ten years: in a trace without time limits, no job was stopped at one."""
KNOW_THE_TRUTH = frozenset({"sjf", "srtf"})
"""Policies that the literature defines with the true run times."""
BELIEVE_THE_LIMIT = frozenset({"easy", "conservative"})
"""Policies that the literature defines with the time limits that users state."""
TYPICAL_PERCENT = {Ranking.FGD: 95, Ranking.BALANCE: 100}
"""How much of the workload the typical shapes cover, for the rankings that use them."""
SAMPLE_JOBS = 10_000
"""This many jobs of a partition are read to find its typical requests and time limits."""

OnProgress = Callable[[str, int], None]
"""Called with the name of the policy and the number of jobs that ended since the last call."""
USUAL_PHYSICS = Physics()


class PredictorChoice(StrEnum):
    """Where expected run times come from."""

    AUTO = "auto"
    HISTORY = "history"
    ORACLE = "oracle"
    STATED = "stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The settings that all policies of an experiment share.

    With `forecasts`, every job that has to wait gets a forecast start time. `seed` is for rankings
    that choose at random.
    """

    predictor: PredictorChoice = PredictorChoice.AUTO
    physics: Physics = USUAL_PHYSICS
    default_limit_ms: int = NO_LIMIT_MS
    forecasts: bool = False
    seed: int = 0


USUAL = Conditions()


def run_policies(
    workload: Workload,
    policies: Iterable[Policy],
    conditions: Conditions = USUAL,
    on_progress: OnProgress | None = None,
) -> list[Run]:
    """Run the same workload under each policy in turn; each run iterates over the jobs once."""
    return [run_policy(workload, policy, conditions, on_progress) for policy in policies]


def run_policy(
    workload: Workload,
    policy: Policy,
    conditions: Conditions = USUAL,
    on_progress: OnProgress | None = None,
) -> Run:
    """Run all partitions under one policy, one after the other."""
    policy = replace(policy, default_limit_ms=conditions.default_limit_ms, seed=conditions.seed)
    choice = predictor_choice(policy, workload, conditions.predictor)
    gpu_milli = {part.name: capacity_milli(part.nodes) for part in workload.partitions}
    run = Run(
        policy=policy.name,
        workload=workload.name,
        capacity_gpu_milli=sum(gpu_milli.values()),
        partition_gpu_milli=gpu_milli,
    )
    begun = perf_counter()
    for partition in workload.partitions:
        predictor = _new_predictor(choice)
        World(
            partition,
            with_typical_shapes(policy, (entry.job for entry in _sample_jobs(partition))),
            predictor,
            conditions.physics,
            run,
            promises_by=_forecaster(conditions, predictor) if conditions.forecasts else None,
            on_progress=None if on_progress is None else _named(on_progress, policy.name),
        ).run()
    run.wall_seconds = perf_counter() - begun
    return run


def predictor_choice(
    policy: Policy, workload: Workload, wanted: PredictorChoice = PredictorChoice.AUTO
) -> PredictorChoice:
    """Resolve `auto` for this policy and this workload; return any other choice unchanged."""
    if wanted is not PredictorChoice.AUTO:
        return wanted
    if policy.name in KNOW_THE_TRUTH:
        return PredictorChoice.ORACLE
    if policy.name in BELIEVE_THE_LIMIT and states_limits(workload):
        return PredictorChoice.STATED
    return PredictorChoice.HISTORY


def states_limits(workload: Workload) -> bool:
    """Whether at least half of the sampled jobs state a time limit or an estimate."""
    jobs = stated = 0
    for partition in workload.partitions:
        for entry in _sample_jobs(partition):
            jobs += 1
            stated += bool(entry.job.max_runtime_ms or entry.job.estimate_ms)
    return 0 < jobs <= 2 * stated


def total_tasks(workload: Workload) -> int | None:
    """The number of outcomes a run will have, or None if the length of a stream is unknown."""
    total = 0
    for partition in workload.partitions:
        if isinstance(partition.jobs, Sequence):
            total += sum(entry.job.task_count for entry in partition.jobs)
        elif partition.total_jobs is None:
            return None
        else:
            total += partition.total_jobs
    return total


def tenant_weights_milli(workload: Workload) -> dict[str, int]:
    """The fair-share weights of all tenants, as `metrics.measure` takes them."""
    return {
        tenant.id: tenant.weight_milli
        for partition in workload.partitions
        for tenant in partition.tenants
    }


def with_typical_shapes(policy: Policy, jobs: Iterable[Job]) -> Policy:
    """The policy with the typical requests of `jobs`, if its ranking needs them and it has none."""
    percent = TYPICAL_PERCENT.get(policy.ranking)
    if percent is None or policy.typical_shapes:
        return policy
    return replace(policy, typical_shapes=typical_shapes(list(jobs), percent))


def fill_by_seed(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    policy: Policy,
    seeds: Iterable[int],
    on_progress: OnProgress | None = None,
) -> Iterator[Filling]:
    """The filling experiment, once for each seed; the typical shapes are those of the pod list."""
    listed = [pod.job(number=place, submit_ms=0) for place, pod in enumerate(pods, start=1)]
    policy = with_typical_shapes(policy, listed)
    step = None if on_progress is None else _named(on_progress, policy.name)
    for seed in seeds:
        arrived = arrivals(pods, seed, capacity_milli(nodes))
        jobs = (pod.job(number=n, submit_ms=n) for n, pod in enumerate(arrived, start=1))
        yield fill(nodes, jobs, replace(policy, seed=seed), step)


def renamed_nodes(nodes: Sequence[Node], seed: int) -> tuple[Node, ...]:
    """The same machines under other names and in another order."""
    shuffled = list(nodes)
    Random(seed).shuffle(shuffled)
    return tuple(
        replace(node, id=f"renamed-{place:05d}", ordinal=place)
        for place, node in enumerate(shuffled)
    )


def _sample_jobs(partition: Partition) -> Iterator[TraceJob]:
    return islice(partition.jobs, SAMPLE_JOBS)


def _new_predictor(choice: PredictorChoice) -> Predictor:
    if choice is PredictorChoice.ORACLE:
        return Oracle()
    return Stated() if choice is PredictorChoice.STATED else History()


def _forecaster(conditions: Conditions, predictor: Predictor) -> Predictor:
    """The predictor for forecasts: medians of the history, unless the caller chose another."""
    if conditions.predictor is PredictorChoice.ORACLE:
        return predictor  # World gives the true run times to this oracle only.
    return Stated() if conditions.predictor is PredictorChoice.STATED else Medians()


def _named(on_progress: OnProgress, policy: str) -> Callable[[int], None]:
    return lambda ended: on_progress(policy, ended)
