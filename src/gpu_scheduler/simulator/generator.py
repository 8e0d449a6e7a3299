"""Workload generator: parameters, nodes and a seed in, a stream of jobs by submission time out.

It keeps only the users' kinds of jobs and the unfinished sweeps in memory, so a million jobs need
no more memory than a thousand. The same arguments give the same jobs in any process.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from itertools import accumulate, count, takewhile
from random import Random

from gpu_scheduler.model.errors import InvalidRequest, NeverFits
from gpu_scheduler.model.job import Job, parse_priority
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.workload import EmptyCluster, Partition, TraceJob, Workload, cluster_of

# Parameters. The defaults follow published GPU traces: most jobs take one GPU and a few minutes,
# most GPU time goes to a few large and long jobs, and users request more time than they need.

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkShape:
    """The parameters: how many jobs, their sizes, run times, users and submission times.

    A `share` lies between 0 and 1. Time 0 is midnight before a Monday.
    """

    jobs: int = 10_000
    """How many jobs to make."""
    load: float = 0.9
    """Offered GPU time over GPU capacity, in the long run; above 1 the queue keeps growing."""
    tenants: int = 6
    users: int = 60
    """Users are assigned to tenants round-robin, so the first tenant is the busiest."""
    user_skew: float = 1.0
    """Zipf exponent: the n-th user submits 1/n^skew as many jobs as the first."""
    kinds_per_user: int = 3
    """The most kinds of recurring jobs that a user has of each size."""
    gpu_mix: tuple[tuple[int, float], ...] = (
        (1, 0.62),
        (2, 0.12),
        (4, 0.09),
        (8, 0.12),
        (16, 0.03),
        (32, 0.015),
        (64, 0.005),
    )
    """GPU counts and their weights. Counts above half of the cluster and one node are left out."""
    fraction_share: float = 0.12
    """Share of jobs with 0.1 to 0.5 GPU."""
    cpu_only_share: float = 0.06
    """Share of jobs without a GPU."""
    interactive_share: float = 0.05
    """Share of the fractional and one-GPU kinds that are interactive sessions."""
    median_run_s: int = 15 * MINUTE_S
    """Median run time of a typical one-GPU kind."""
    kind_spread: float = 1.5
    """Standard deviation of the logarithm of the median, between kinds."""
    run_spread: tuple[float, float] = (0.2, 1.2)
    """Standard deviation of the logarithm of the run time within a kind: from, to."""
    size_exponent: float = 0.25
    """The median grows with the GPU count to this power."""
    longest_run_s: int = 7 * DAY_S
    fail_share: float = 0.12
    """Share of jobs that fail within the first minutes."""
    argument_share: float = 0.0
    """Share of kinds whose jobs have a command whose arguments decide the run time."""
    limit_share: float = 0.85
    """Share of kinds whose user states a limit."""
    limit_factor: tuple[float, float] = (1.2, 6.0)
    """Overestimation factor of time limits: from, to; then rounded up to 1 h, 4 h, 12 h ..."""
    sweep_share: float = 0.25
    """Share of the kinds up to one GPU that are submitted as sweeps of many jobs at once."""
    sweep_jobs: int = 12
    """Mean number of jobs in a sweep."""
    sweep_gap_s: int = 5
    """The longest time between two jobs of a sweep, in seconds."""
    day_swing: float = 0.7
    """Amplitude of the arrival rate over the day: 0 is constant, 1 falls to no arrivals."""
    peak_hour: float = 15.0
    weekend_factor: float = 0.5
    """Arrival rate on Saturday and Sunday, relative to a working day."""
    priorities: tuple[tuple[str, float], ...] = (
        ("low", 0.12),
        ("normal", 0.76),
        ("high", 0.10),
        ("urgent", 0.02),
    )
    """Names or numbers of priorities and their weights."""
    cpu_milli_per_gpu: int = 4_000
    memory_mb_per_gpu: int = 16_384
    """CPUs and memory requested per GPU; less if a node has less per GPU."""

    def __post_init__(self) -> None:
        """Reject parameters from which no jobs can be generated."""
        for item in fields(self):
            _check_number(item.name, getattr(self, item.name))
        if self.load == 0 or not self.gpu_mix or not self.priorities:
            raise InvalidRequest("load, gpu_mix and priorities must not be 0 or empty")
        for name in ("run_spread", "limit_factor"):
            low, high = getattr(self, name)
            if low > high:
                raise InvalidRequest(
                    f"{name} goes from {low} to {high}; the first value must not be larger"
                )
        if self.fraction_share + self.cpu_only_share >= 1:
            raise InvalidRequest("fraction_share and cpu_only_share leave no job with whole GPUs")
        if any(gpus < 1 for gpus, _ in self.gpu_mix):
            raise InvalidRequest(
                "gpu_mix has a GPU count below 1; use fraction_share or cpu_only_share instead"
            )
        for weights in (self.gpu_mix, self.priorities):
            if sum(weight for _, weight in weights) <= 0:
                raise InvalidRequest("the weights of gpu_mix and of priorities must not all be 0")
        for name, _ in self.priorities:
            parse_priority(name)


_AT_LEAST_ONE = frozenset(
    ("jobs", "tenants", "users", "kinds_per_user", "median_run_s", "longest_run_s", "sweep_jobs")
)
_AT_MOST_ONE = frozenset({"day_swing"})


def _check_number(name: str, value: object) -> None:
    """Check a number, or each number of nested tuples: finite, 0 or more, shares at most 1."""
    if isinstance(value, tuple):
        for item in value:
            _check_number(name, item)
    elif isinstance(value, (int, float)):
        if not math.isfinite(value) or value < 0:
            raise InvalidRequest(f"{name} is {value}; it must be 0 or more")
        if name in _AT_LEAST_ONE and value < 1:
            raise InvalidRequest(f"{name} is {value}; it must be 1 or more")
        if (name in _AT_MOST_ONE or name.endswith("_share")) and value > 1:
            raise InvalidRequest(f"{name} is {value}; it must lie between 0 and 1")


# Users. Each user repeats a few kinds of jobs, so that the history of a (user, job name) predicts
# its future.

FRACTIONS_MILLI = (100, 200, 250, 300, 500)
ROUND_LIMITS_S = (
    *(15 * MINUTE_S, 30 * MINUTE_S, HOUR_S, 2 * HOUR_S, 4 * HOUR_S, 8 * HOUR_S, 12 * HOUR_S),
    *(DAY_S, 2 * DAY_S, 3 * DAY_S, 7 * DAY_S, 14 * DAY_S),
)
FAILURE_S = (5, 300)
"""The earliest and latest time at which a failing job ends."""
NINE_IN_TEN = 1.2816
"""Nine of ten normal draws lie below this many standard deviations above the mean."""
BATCH_NAMES = ("train", "finetune", "pretrain", "evaluate", "distill", "infer", "simulate")
CPU_NAMES = ("preprocess", "tokenize", "convert", "report")


EPOCHS = (1, 3, 10, 30, 100)
USUAL_EPOCHS = 10
MODELS = {
    "resnet50": -1.0,
    "vit-b16": -0.4,
    "bert-base": -0.6,
    "gpt2-xl": 0.5,
    "llama-1b": 0.3,
    "llama-7b": 1.2,
}
"""How much longer (logarithm) a run takes with a model."""
DATASETS = {"cifar100": -1.2, "imagenet": 0.6, "wikitext": -0.5, "c4": 1.0}
ARGUMENT_SPREAD = 0.15
"""Standard deviation of the logarithm of the run time between runs with the same arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the user of a kind chooses among for each job; a run time is proportional to epochs.

    Learning rate and seed differ in every job and do not matter.
    """

    script: str
    epochs: tuple[int, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]

    def draw(self, chance: Random) -> tuple[tuple[str, ...], float]:
        """A command, and the logarithm of the factor by which its run takes longer."""
        epochs, model = chance.choice(self.epochs), chance.choice(self.models)
        dataset = chance.choice(self.datasets)
        command = (
            *("python", self.script, "--model", model, "--dataset", dataset),
            *("--epochs", str(epochs), "--lr", f"{10 ** chance.uniform(-5, -2):.2g}"),
            *("--seed", str(chance.randint(0, 9_999))),
        )
        return command, _log_factor(epochs, model, dataset)

    def log_factors(self) -> list[float]:
        """The factors of all choices, which are equally likely."""
        return [
            _log_factor(epochs, model, dataset)
            for epochs in self.epochs
            for model in self.models
            for dataset in self.datasets
        ]


def _log_factor(epochs: int, model: str, dataset: str) -> float:
    return math.log(epochs / USUAL_EPOCHS) + MODELS[model] + DATASETS[dataset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A recurring job of one user. `share` is its share of all jobs.

    Run times are log-normal around `log_median`, and at most `longest_s`.
    """

    tenant: str
    user: str
    name: str
    members: tuple[Request, ...]
    share: float
    log_median: float
    log_spread: float
    longest_s: int
    limit_s: int
    interactive: bool
    sweep_jobs: float
    arguments: Arguments | None = None

    @property
    def gpu_milli(self) -> int:
        """GPUs of all members."""
        return sum(member.gpu_milli for member in self.members)

    def run_s(self, chance: Random, fail_share: float, log_factor: float = 0.0) -> int:
        """One run time in whole seconds."""
        if chance.random() < fail_share:
            return min(chance.randint(*FAILURE_S), self.longest_s)
        drawn = math.exp(chance.gauss(self.log_median + log_factor, self.log_spread))
        return max(1, min(round(drawn), self.longest_s))

    def mean_run_s(self, fail_share: float) -> float:
        """The mean of `run_s`."""
        failing = sum(FAILURE_S) / 2
        factors = (0.0,) if self.arguments is None else self.arguments.log_factors()
        means = [self._mean_cut_run_s(self.log_median + factor) for factor in factors]
        return fail_share * failing + (1 - fail_share) * sum(means) / len(means)

    def _mean_cut_run_s(self, log_median: float) -> float:
        """The mean of a log-normal draw that is capped at `longest_s`."""
        spread = self.log_spread
        log_longest = math.log(self.longest_s)
        if spread == 0:
            return math.exp(min(log_median, log_longest))
        distance = (log_longest - log_median) / spread
        below = math.exp(log_median + spread**2 / 2) * _normal_below(distance - spread)
        return below + self.longest_s * (1 - _normal_below(distance))


@dataclass(frozen=True, slots=True)
class Size:
    """A request, its share of all jobs, and the names of such jobs."""

    members: tuple[Request, ...]
    share: float
    names: tuple[str, ...]
    is_small: bool


def kinds_of(shape: WorkShape, nodes: tuple[Node, ...], chance: Random) -> tuple[Kind, ...]:
    """Several kinds of each size for every user. Shares add up to 1."""
    kinds: list[Kind] = []
    for size in _sizes(shape, nodes):
        # Random weights per user, so that the busiest user is not the busiest at every size.
        weights = [
            math.exp(chance.gauss(0, 1)) / (place + 1) ** shape.user_skew
            for place in range(shape.users)
        ]
        total = sum(weights)
        for place, weight in enumerate(weights):
            count = chance.randint(1, shape.kinds_per_user)
            for _ in range(count):
                share = size.share * weight / total / count
                kinds.append(_kind(shape, size, place, share, len(kinds), chance))
    return tuple(kinds)


def _kind(
    shape: WorkShape, size: Size, user: int, share: float, number: int, chance: Random
) -> Kind:
    """A kind of jobs of one size, for the user with this place in the list of users."""
    interactive = size.is_small and chance.random() < shape.interactive_share
    sweeps = size.is_small and not interactive and chance.random() < shape.sweep_share
    name = "notebook" if interactive else chance.choice(size.names)
    gpus = max(1.0, sum(member.gpu_milli for member in size.members) / WHOLE_MILLI)
    log_median = math.log(shape.median_run_s * gpus**shape.size_exponent)
    log_median += chance.gauss(0, shape.kind_spread)
    # At least half of the runs of a kind stay below the longest run time.
    log_median = min(log_median, math.log(shape.longest_run_s / 2))
    log_spread = chance.uniform(*shape.run_spread)
    arguments = None
    if shape.argument_share and not interactive and chance.random() < shape.argument_share:
        arguments = Arguments(
            script=f"{name}_{number}.py",
            epochs=tuple(chance.sample(EPOCHS, 3)),
            models=tuple(chance.sample(sorted(MODELS), 3)),
            datasets=tuple(chance.sample(sorted(DATASETS), 2)),
        )
    long_run_s = math.exp(log_median + NINE_IN_TEN * log_spread)
    # The next round limit that users choose, at most the longest run.
    wanted_s = long_run_s * chance.uniform(*shape.limit_factor)
    rounded_s = next((limit for limit in ROUND_LIMITS_S if limit >= wanted_s), ROUND_LIMITS_S[-1])
    limit_s = min(rounded_s, shape.longest_run_s)
    if chance.random() >= shape.limit_share:
        limit_s = 0
    if arguments is not None:
        # Users choose arguments and no limit for each; what is random is small beside them.
        limit_s, log_spread = 0, ARGUMENT_SPREAD
    return Kind(
        tenant=f"tenant-{user % shape.tenants + 1}",
        user=f"user-{user + 1:03d}",
        name=f"{name}-{number}",
        members=size.members,
        share=share,
        log_median=log_median,
        log_spread=log_spread,
        longest_s=limit_s or shape.longest_run_s,
        limit_s=limit_s,
        interactive=interactive,
        sweep_jobs=max(2, shape.sweep_jobs) if sweeps else 1,
        arguments=arguments,
    )


def _sizes(shape: WorkShape, nodes: tuple[Node, ...]) -> tuple[Size, ...]:
    """The sizes that this cluster can run, with shares that add up to 1."""
    empty = EmptyCluster(nodes)
    sizes = [size for size in _wanted_sizes(shape, nodes, empty) if size.share > 0]
    if not any(member.gpu_milli for size in sizes for member in size.members):
        raise InvalidRequest(
            f"none of the GPU counts in gpu_mix fits a cluster of {empty.gpu_count} GPUs; "
            "use smaller counts or more nodes"
        )
    total = sum(size.share for size in sizes)
    return tuple(replace(size, share=size.share / total) for size in sizes)


def _wanted_sizes(shape: WorkShape, nodes: tuple[Node, ...], empty: EmptyCluster) -> Iterator[Size]:
    with_gpus = [node for node in nodes if node.devices]
    cpu_milli = min(
        [shape.cpu_milli_per_gpu, *(node.cpu_milli // node.gpu_count for node in with_gpus)]
    )
    memory_mb = min(
        [shape.memory_mb_per_gpu, *(node.memory_mb // node.gpu_count for node in with_gpus)]
    )
    device_mb = min((device.memory_mb for node in with_gpus for device in node.devices), default=0)

    def size(gpus_milli: int, share: float, names: tuple[str, ...]) -> Iterator[Size]:
        request = Request.for_gpus(
            gpus_milli,
            gpu_memory_mb_per_gpu=device_mb * gpus_milli // WHOLE_MILLI if gpus_milli < 1000 else 0,
            cpu_milli=cpu_milli * max(gpus_milli, WHOLE_MILLI) // WHOLE_MILLI,
            memory_mb=memory_mb * max(gpus_milli, WHOLE_MILLI) // WHOLE_MILLI,
        )
        try:
            yield Size(empty.spread(request), share, names, gpus_milli <= WHOLE_MILLI)
        except NeverFits:
            return

    largest = max(empty.largest_node_gpus, empty.gpu_count // 2)
    whole_share = 1 - shape.fraction_share - shape.cpu_only_share
    total = sum(weight for _, weight in shape.gpu_mix)
    for gpus, weight in shape.gpu_mix:
        if gpus <= largest:
            yield from size(gpus * WHOLE_MILLI, whole_share * weight / total, BATCH_NAMES)
    for fraction_milli in FRACTIONS_MILLI if empty.gpu_count else ():
        share = shape.fraction_share / len(FRACTIONS_MILLI)
        yield from size(fraction_milli, share, BATCH_NAMES)
    if cpu_milli:
        yield from size(0, shape.cpu_only_share, CPU_NAMES)


def _normal_below(distance: float) -> float:
    """The share of standard normal draws below `distance`."""
    return (1 + math.erf(distance / math.sqrt(2))) / 2


# Jobs: parameters, nodes and a seed in, a stream of jobs in order of submission out.

WEEK_DAYS = 7
WORKING_DAYS = 5


def generate(shape: WorkShape, nodes: Sequence[Node], seed: int) -> Iterator[TraceJob]:
    """Jobs in order of submission, drawn one by one. Raises at once if an argument is invalid."""
    chance = Random(seed)
    kinds = kinds_of(shape, tuple(nodes), chance)
    rate = _submissions_per_s(shape, kinds, sum(node.gpu_count for node in nodes))
    return _jobs(shape, kinds, rate, chance)


def generated_workload(
    shape: WorkShape, nodes: Sequence[Node], seed: int, *, name: str = "generated"
) -> Workload:
    """One partition with generated jobs that can be iterated over repeatedly."""
    jobs = GeneratedJobs(shape, nodes, seed)
    tenants = tuple(
        Tenant(id=f"tenant-{number}") for number in range(1, min(shape.tenants, shape.users) + 1)
    )
    pool = Partition(
        name="all", nodes=tuple(nodes), jobs=jobs, tenants=tenants, total_jobs=shape.jobs
    )
    return Workload(name=name, partitions=[pool])


def with_priorities(
    jobs: Iterable[TraceJob], priorities: Sequence[tuple[str, float]], seed: int
) -> list[TraceJob]:
    """The jobs with random priorities of these weights."""
    chance = Random(seed)
    levels = [parse_priority(name) for name, _ in priorities]
    steps = list(accumulate(weight for _, weight in priorities))
    if steps[-1] <= 0:
        raise InvalidRequest("the weights of --priorities must not all be 0")
    return [
        TraceJob(replace(entry.job, priority=levels[_drawn(steps, chance)]), entry.run_ms)
        for entry in jobs
    ]


class GeneratedJobs:
    """Generated jobs as an iterable: each iteration gives the same stream."""

    def __init__(self, shape: WorkShape, nodes: Sequence[Node], seed: int) -> None:
        """Check the arguments; jobs are generated on iteration."""
        generate(shape, nodes, seed)
        self._arguments = (shape, tuple(nodes), seed)

    def __iter__(self) -> Iterator[TraceJob]:
        """Start a new stream."""
        return generate(*self._arguments)


def rhythm(shape: WorkShape, at_s: float) -> float:
    """The arrival rate at this time, relative to the mean of the week."""
    day = int(at_s // DAY_S) % WEEK_DAYS
    hour = at_s % DAY_S / HOUR_S
    weekend = WEEK_DAYS - WORKING_DAYS
    mean = (WORKING_DAYS + weekend * shape.weekend_factor) / WEEK_DAYS
    of_day = 1 + shape.day_swing * math.cos(2 * math.pi * (hour - shape.peak_hour) / 24)
    return of_day * (1 if day < WORKING_DAYS else shape.weekend_factor) / mean


def _submissions_per_s(shape: WorkShape, kinds: Sequence[Kind], gpu_count: int) -> float:
    """The rate of submissions that gives the requested load.

    A sweep is one submission of many jobs.
    """
    gpu_s_per_job = sum(
        kind.share * kind.gpu_milli / WHOLE_MILLI * kind.mean_run_s(shape.fail_share)
        for kind in kinds
    )
    jobs_per_s = shape.load * gpu_count / gpu_s_per_job
    return jobs_per_s * sum(kind.share / kind.sweep_jobs for kind in kinds)


def _submission_times_s(shape: WorkShape, rate: float, chance: Random) -> Iterator[float]:
    """A Poisson process with daily and weekly cycles, by thinning one at the highest rate."""
    peak = max(
        rhythm(shape, day * DAY_S + shape.peak_hour % 24 * HOUR_S) for day in (0, WORKING_DAYS)
    )
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate * peak)
        if chance.random() * peak < rhythm(shape, at_s):
            yield at_s


def _jobs(
    shape: WorkShape, kinds: Sequence[Kind], rate: float, chance: Random
) -> Iterator[TraceJob]:
    """Submissions of one job or a sweep of jobs, merged into one stream by time."""
    steps = list(accumulate(kind.share / kind.sweep_jobs for kind in kinds))
    priorities = [parse_priority(name) for name, _ in shape.priorities]
    priority_steps = list(accumulate(weight for _, weight in shape.priorities))
    times = _submission_times_s(shape, rate, chance)
    order = count()
    sweeps: list[tuple[float, int, Kind, int, int]] = []
    next_s = next(times)
    for number in range(1, shape.jobs + 1):
        if sweeps and sweeps[0][0] <= next_s:
            at_s, _, kind, priority, left = heappop(sweeps)
        else:
            at_s, next_s = next_s, next(times)
            kind = kinds[_drawn(steps, chance)]
            priority = priorities[_drawn(priority_steps, chance)]
            left = _sweep_size(kind, chance)
        if left > 1:
            later_s = at_s + chance.uniform(0, shape.sweep_gap_s)
            heappush(sweeps, (later_s, next(order), kind, priority, left - 1))
        command: tuple[str, ...] = ()
        log_factor = 0.0
        if kind.arguments is not None:
            command, log_factor = kind.arguments.draw(chance)
        job = Job(
            id=f"g{number}",
            number=number,
            submit_ms=int(at_s) * 1000,
            tenant=kind.tenant,
            user=kind.user,
            name=kind.name,
            command=command,
            members=kind.members,
            priority=priority,
            interactive=kind.interactive,
            preemptible=not kind.interactive,
            max_runtime_ms=kind.limit_s * 1000,
        )
        yield TraceJob(job, kind.run_s(chance, shape.fail_share, log_factor) * 1000)


def _sweep_size(kind: Kind, chance: Random) -> int:
    """Two jobs or more with the requested mean: many small sweeps and a few large ones."""
    if kind.sweep_jobs == 1:
        return 1
    end_chance = 1 / (kind.sweep_jobs - 1)
    if end_chance >= 1:
        return 2
    return 2 + int(math.log(1 - chance.random()) / math.log(1 - end_chance))


def _drawn(steps: Sequence[float], chance: Random) -> int:
    """A random index, weighted; `steps` are the cumulative weights."""
    return min(bisect(steps, chance.random() * steps[-1]), len(steps) - 1)


# The demo: one working day of four groups on a small cluster, generated from a seed.

NODES = 8
GPUS_PER_NODE = 8
TENANTS = ("vision", "language", "robotics", "students")
SHAPE = WorkShape(
    jobs=20_000,
    load=1.0,
    tenants=len(TENANTS),
    users=24,
    gpu_mix=((1, 0.60), (2, 0.14), (4, 0.12), (8, 0.11), (16, 0.03)),
    longest_run_s=12 * HOUR_S,
)
"""A busy day: demand exceeds capacity in the afternoon, and the queue drains at night."""


def demo_workload(seed: int) -> Workload:
    """All jobs submitted within the first day, with realistic names of users and tenants."""
    nodes = cluster_of(NODES, GPUS_PER_NODE, model="H100", nodes_per_rack=4).nodes
    day = takewhile(lambda entry: entry.job.submit_ms < DAY_S * 1000, generate(SHAPE, nodes, seed))
    names = {f"tenant-{number}": name for number, name in enumerate(TENANTS, start=1)}
    jobs = [
        TraceJob(replace(entry.job, tenant=names[entry.job.tenant]), entry.run_ms) for entry in day
    ]
    pool = Partition(
        name="all",
        nodes=nodes,
        jobs=jobs,
        tenants=tuple(Tenant(id=name) for name in TENANTS),
        total_jobs=len(jobs),
    )
    return Workload(name="demo: one day of four groups", partitions=[pool])
