"""Generated work: a shape, nodes and a seed in, a stream of jobs in order of submission out.

Nothing is kept but the population and the sweeps under way, so a million jobs cost no more memory
than a thousand. The same arguments give the same jobs in any process.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random

from gpu_scheduler.model.job import Job, read_priority
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.population import Kind, kinds_of
from gpu_scheduler.simulator.shape import DAY_S, HOUR_S, WorkShape
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload

WEEK_DAYS = 7
WORKING_DAYS = 5


def generate(shape: WorkShape, nodes: Sequence[Node], seed: int) -> Iterator[TraceJob]:
    """Jobs in order of submission, drawn one by one. Bad arguments are refused at once."""
    chance = Random(seed)
    kinds = kinds_of(shape, tuple(nodes), chance)
    rate = _submissions_per_s(shape, kinds, sum(node.gpu_count for node in nodes))
    return _jobs(shape, kinds, rate, chance)


def generated_workload(
    shape: WorkShape, nodes: Sequence[Node], seed: int, *, name: str = "generated"
) -> Workload:
    """One pool with generated work that can be gone through as often as wanted."""
    jobs = GeneratedJobs(shape, nodes, seed)
    tenants = tuple(
        Tenant(id=f"tenant-{number}") for number in range(1, min(shape.tenants, shape.users) + 1)
    )
    pool = Partition(
        name="all", nodes=tuple(nodes), jobs=jobs, tenants=tenants, total_jobs=shape.jobs
    )
    return Workload(name=name, partitions=[pool])


class GeneratedJobs:
    """Generated jobs as something to iterate over again and again: each time the same stream."""

    def __init__(self, shape: WorkShape, nodes: Sequence[Node], seed: int) -> None:
        """Draw nothing yet, but refuse bad arguments now."""
        generate(shape, nodes, seed)
        self._arguments = (shape, tuple(nodes), seed)

    def __iter__(self) -> Iterator[TraceJob]:
        """Start a new stream."""
        return generate(*self._arguments)


def rhythm(shape: WorkShape, at_s: float) -> float:
    """How many arrivals there are at this time, over the mean of the week."""
    day = int(at_s // DAY_S) % WEEK_DAYS
    hour = at_s % DAY_S / HOUR_S
    weekend = WEEK_DAYS - WORKING_DAYS
    mean = (WORKING_DAYS + weekend * shape.weekend_factor) / WEEK_DAYS
    of_day = 1 + shape.day_swing * math.cos(2 * math.pi * (hour - shape.peak_hour) / 24)
    return of_day * (1 if day < WORKING_DAYS else shape.weekend_factor) / mean


def _submissions_per_s(shape: WorkShape, kinds: Sequence[Kind], gpu_count: int) -> float:
    """How often somebody submits something, so that the offered load comes out as wanted.

    A sweep is one submission of many jobs.
    """
    gpu_s_per_job = sum(
        kind.share * kind.gpu_milli / WHOLE_MILLI * kind.mean_run_s(shape.fail_share)
        for kind in kinds
    )
    jobs_per_s = shape.load * gpu_count / gpu_s_per_job
    return jobs_per_s * sum(kind.share / kind.sweep_jobs for kind in kinds)


def _submission_times_s(shape: WorkShape, rate: float, chance: Random) -> Iterator[float]:
    """A Poisson process with the rhythm of days and weeks, by thinning one at the highest rate."""
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
    priorities = [read_priority(name) for name, _ in shape.priorities]
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
        yield _trace_job(
            kind, number, int(at_s) * 1000, priority, kind.run_s(chance, shape.fail_share)
        )


def _sweep_size(kind: Kind, chance: Random) -> int:
    """Two jobs or more with the wanted mean, many small sweeps and a few large ones."""
    if kind.sweep_jobs == 1:
        return 1
    end_chance = 1 / (kind.sweep_jobs - 1)
    if end_chance >= 1:
        return 2
    return 2 + int(math.log(1 - chance.random()) / math.log(1 - end_chance))


def _trace_job(kind: Kind, number: int, submit_ms: int, priority: int, run_s: int) -> TraceJob:
    job = Job(
        id=f"g{number}",
        number=number,
        submit_ms=submit_ms,
        tenant=kind.tenant,
        user=kind.user,
        name=kind.name,
        members=kind.members,
        priority=priority,
        interactive=kind.interactive,
        preemptible=not kind.interactive,
        max_runtime_ms=kind.limit_s * 1000,
    )
    return TraceJob(job, run_s * 1000)


def _drawn(steps: Sequence[float], chance: Random) -> int:
    """A place in a list of rising sums, by weight."""
    return min(bisect(steps, chance.random() * steps[-1]), len(steps) - 1)
