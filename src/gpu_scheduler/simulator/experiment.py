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

from gpu_scheduler.engine.arrivals import RecentRequests
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import DAY_MS, Policy, Ranking, RestartCost
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Running, Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.request import WHOLE_MILLI, TypicalShape
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.predict.selection import ScoreTotals, SelectedPredictor
from gpu_scheduler.predict.training import train_here
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.predictors import AsTold, Oracle, Stated
from gpu_scheduler.simulator.traces.openb import Pod, arrivals
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload
from gpu_scheduler.simulator.world import Physics, World

NO_LIMIT_MS = 3_650 * DAY_MS
"""Ten years: in a trace without time limits, no job was stopped at one."""
KNOW_THE_TRUTH = frozenset({"sjf", "srtf"})
"""Policies that the literature defines with the true run times."""
BELIEVE_THE_LIMIT = frozenset({"easy", "conservative"})
"""Policies that the literature defines with the time limits that users state."""
TYPICAL_PERCENT = {Ranking.FGD: 95}
"""How much of the workload the typical shapes cover that a ranking is given before it begins."""
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
    LEARNED = "learned"


class VictimChoice(StrEnum):
    """How a policy that preempts chooses among the jobs that it may preempt."""

    AGE = "age"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The settings that all policies of an experiment share.

    With `forecasts`, every job that has to wait (or one in `forecast_every`, chosen by its id) gets
    a forecast start time. `seed` is for rankings that choose at random. With predicted `victims`,
    policies know what a preemption costs, and choose by that and by the expected remaining work.
    """

    predictor: PredictorChoice = PredictorChoice.AUTO
    physics: Physics = USUAL_PHYSICS
    victims: VictimChoice = VictimChoice.AGE
    default_limit_ms: int = NO_LIMIT_MS
    forecasts: bool = False
    forecast_every: int = 1
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
    if conditions.victims is VictimChoice.PREDICTED:
        policy = replace(policy, restart=_restart_cost(conditions.physics))
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
            promise_every=conditions.forecast_every,
            on_progress=None if on_progress is None else _named(on_progress, policy.name),
        ).run()
        if isinstance(predictor, SelectedPredictor):
            run.predictions = run.predictions or ScoreTotals()
            run.predictions.add(predictor.totals)
    run.wall_seconds = perf_counter() - begun
    return run


def _restart_cost(physics: Physics) -> RestartCost:
    """What the policy knows of the cost; a job that saves its work when stopped loses none."""
    every_ms = (physics.checkpoint_every_ms or 1) if physics.keeps_progress else 0
    return RestartCost(restart_ms=physics.preemption_cost_ms, checkpoint_every_ms=every_ms)


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


def _sample_jobs(partition: Partition) -> Iterator[TraceJob]:
    return islice(partition.jobs, SAMPLE_JOBS)


def _new_predictor(choice: PredictorChoice) -> Predictor:
    if choice is PredictorChoice.ORACLE:
        return Oracle()
    if choice is PredictorChoice.LEARNED:
        # The library of the optional extra is needed for this choice only.
        return SelectedPredictor(train_here)
    return Stated() if choice is PredictorChoice.STATED else History()


def _forecaster(conditions: Conditions, predictor: Predictor) -> Predictor:
    """The predictor for forecasts: what users are told, unless the caller chose another."""
    if conditions.predictor is PredictorChoice.ORACLE:
        return predictor  # World gives the true run times to this oracle only.
    return Stated() if conditions.predictor is PredictorChoice.STATED else AsTold()


def _named(on_progress: OnProgress, policy: str) -> Callable[[int], None]:
    return lambda ended: on_progress(policy, ended)


# The packing experiment of the fragmentation literature, on the production engine. Requests arrive
# one by one and never end; a request that fits nowhere is dropped. The result is how much of the
# cluster is allocated when the requests add up to its capacity.

FOR_EVER_MS = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Allocated percentage by requested percentage of capacity, and the dropped and placed jobs."""

    allocated_percent: dict[int, float]
    dropped: int
    placed: int


def fill(
    nodes: Sequence[Node],
    jobs: Iterable[Job],
    policy: Policy,
    on_progress: Callable[[int], None] | None = None,
) -> Filling:
    """Let the jobs arrive in order, and decide about each at once."""
    cluster = ClusterState(policy)
    for node in nodes:
        cluster.set_node(node)
    requests = RecentRequests()
    arrived = allocated = dropped = placed = 0
    bins: dict[int, tuple[int, int]] = {}
    for now_ms, job in enumerate(jobs):
        if requests.note(job) and policy.ranking is Ranking.BALANCE:
            cluster.set_demand(requests.demand)
        cluster.enqueue(Waiting(job=job, expected_ms=FOR_EVER_MS))
        plan = decide(cluster, policy, now_ms)
        cluster.dequeue(job.number)
        arrived += job.gpu_milli
        if plan.starts:
            start = plan.starts[0]
            allocation = Allocation(
                id=job.id,
                job_id=job.id,
                task=None,
                attempt=1,
                placements=start.placements,
                start_ms=now_ms,
            )
            cluster.start(Running(job=job, allocation=allocation, expected_end_ms=FOR_EVER_MS))
            allocated += job.gpu_milli
            placed += 1
        else:
            dropped += 1
        percent = (arrived * 200 // cluster.total_gpu_milli + 1) // 2
        total, count = bins.get(percent, (0, 0))
        bins[percent] = (total + allocated, count + 1)
        if on_progress is not None:
            on_progress(1)
    return Filling(
        allocated_percent={
            percent: 100 * total / count / cluster.total_gpu_milli
            for percent, (total, count) in sorted(bins.items())
        },
        dropped=dropped,
        placed=placed,
    )


def typical_shapes(jobs: Sequence[Job], percent: int = 100) -> tuple[TypicalShape, ...]:
    """The distinct requests of a list, most frequent first, until they cover enough of it."""
    counts: dict[TypicalShape, int] = {}
    for job in jobs:
        request = job.members[0]
        shape = TypicalShape(
            cpu_milli=request.cpu_milli,
            memory_mb=0,
            gpu_count=request.gpu_count,
            gpu_share_milli=request.gpu_share_milli if request.gpu_count else 0,
            gpu_models=request.gpu_models,
            count=0,
        )
        counts[shape] = counts.get(shape, 0) + 1
    chosen: list[TypicalShape] = []
    covered = 0
    for shape, count in sorted(counts.items(), key=_most_frequent):
        if covered * 100 >= percent * len(jobs):
            break
        chosen.append(replace(shape, count=count))
        covered += count
    return tuple(chosen)


def _most_frequent(item: tuple[TypicalShape, int]) -> tuple[int, int, int, int]:
    shape, count = item
    return (-count, shape.cpu_milli, shape.gpu_share_milli, shape.gpu_count)


def capacity_milli(nodes: Sequence[Node]) -> int:
    """All GPUs of the nodes."""
    return sum(node.gpu_count for node in nodes) * WHOLE_MILLI


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
