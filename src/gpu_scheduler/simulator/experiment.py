"""Experiments: policies on the same work, each in a world of its own; runs come out.

The command line, the tests and the benchmarks all come through here. Nothing is shared between
two policies or two partitions: every one gets a fresh predictor and an empty cluster.
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
"""Ten years. A trace that states no limit has jobs that were never cut."""
KNOW_THE_TRUTH = frozenset({"sjf", "srtf"})
"""Policies that the literature defines by the true run times."""
BELIEVE_THE_LIMIT = frozenset({"easy", "conservative"})
"""Policies that the literature defines by what users state."""
TYPICAL_PERCENT = {Ranking.FGD: 95, Ranking.BALANCE: 100}
"""How much of the work the typical shapes cover, for the rankings that ask for them."""
LOOKED_AT_JOBS = 10_000
"""So many jobs of a partition are looked at to learn what its work is like."""

OnProgress = Callable[[str, int], None]
"""Called with the name of the policy and how many more jobs have ended."""
USUAL_PHYSICS = Physics()


class PredictorChoice(StrEnum):
    """Where expected run times come from."""

    AUTO = "auto"
    HISTORY = "history"
    ORACLE = "oracle"
    STATED = "stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds for every policy of an experiment.

    With `forecasts`, every job that has to wait is promised a start. `seed` is for rankings that
    draw lots.
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
    """Run the same work under each policy in turn. The jobs are gone through once for each."""
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
        predictor = _fresh(choice)
        World(
            partition,
            with_typical_shapes(policy, (entry.job for entry in _looked_at(partition))),
            predictor,
            conditions.physics,
            run,
            promises_by=_promiser(conditions, predictor) if conditions.forecasts else None,
            on_progress=None if on_progress is None else _named(on_progress, policy.name),
        ).run()
    run.wall_seconds = perf_counter() - begun
    return run


def predictor_choice(
    policy: Policy, workload: Workload, wanted: PredictorChoice = PredictorChoice.AUTO
) -> PredictorChoice:
    """What `auto` means for this policy and this work; any other wish is granted."""
    if wanted is not PredictorChoice.AUTO:
        return wanted
    if policy.name in KNOW_THE_TRUTH:
        return PredictorChoice.ORACLE
    if policy.name in BELIEVE_THE_LIMIT and states_limits(workload):
        return PredictorChoice.STATED
    return PredictorChoice.HISTORY


def states_limits(workload: Workload) -> bool:
    """Tell whether at least half of the jobs come with a limit or an estimate."""
    jobs = stated = 0
    for partition in workload.partitions:
        for entry in _looked_at(partition):
            jobs += 1
            stated += bool(entry.job.max_runtime_ms or entry.job.estimate_ms)
    return 0 < jobs <= 2 * stated


def total_tasks(workload: Workload) -> int | None:
    """How many outcomes a run will have, or None if a stream does not tell."""
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
    """The fair-share weights of all tenants, as `measures.measure` wants them."""
    return {
        tenant.id: tenant.weight_milli
        for partition in workload.partitions
        for tenant in partition.tenants
    }


def with_typical_shapes(policy: Policy, jobs: Iterable[Job]) -> Policy:
    """The policy, told what the usual requests are if its ranking asks and nobody has said."""
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


def _looked_at(partition: Partition) -> Iterator[TraceJob]:
    return islice(partition.jobs, LOOKED_AT_JOBS)


def _fresh(choice: PredictorChoice) -> Predictor:
    if choice is PredictorChoice.ORACLE:
        return Oracle()
    return Stated() if choice is PredictorChoice.STATED else History()


def _promiser(conditions: Conditions, predictor: Predictor) -> Predictor:
    """Promises are made from medians of history, unless another knowledge was asked for."""
    if conditions.predictor is PredictorChoice.ORACLE:
        return predictor  # The truth is told to one oracle only.
    return Stated() if conditions.predictor is PredictorChoice.STATED else Medians()


def _named(on_progress: OnProgress, policy: str) -> Callable[[int], None]:
    return lambda ended: on_progress(policy, ended)
