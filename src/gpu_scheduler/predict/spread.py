"""How long jobs like this one run, as a distribution: quantiles, not only a mean.

Four groups, from fine to coarse: the same kind of work of the same user (by name or command, GPUs
and CPUs; where people state limits, by the limit), all work of the user, all work of the tenant
with as many GPUs (or the same limit), and all work of the tenant. Each group keeps its last run
times, recent ones weigh more, and passes on to the next coarser one what it is not sure of. Coarse
groups learn the run time as a part of the limit, where there is one. Of a job that runs already,
only run times longer than what it has run so far count, so an estimate that was exceeded corrects
itself upward.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.recent import Recent
from gpu_scheduler.predict.typical import name_of

KEPT = (16, 40, 64, 128)
RECENCY = (0.6, 0.9, 0.97, 0.997)
DOUBT = 4.0
"""How much experience a group needs before it is believed more than the coarser ones."""
PRIOR_ATOMS = 8
LEAST_PRIOR = 0.001
PRIOR_WHEN_RUNNING = 0.2
SHORTEST_MS = 10_000
LONGEST_MS = 86_400_000
LONGER = 8
MAX_VIEWS = 1_000
"""For how many kinds of jobs the order of what was seen is kept."""

Atom = tuple[float, float]
"""A run time in milliseconds and its weight."""


class Spread:
    """The last run times of every group, and what they say of a job.

    What the groups say of one kind of job is kept in order until one of them learns something new,
    as many jobs of a kind may run longer than expected at the same time.
    """

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._groups: Recent[_Group] = Recent()
        self._views: OrderedDict[Hashable, _View] = OrderedDict()

    def quantile(self, job: Job, percent: int, elapsed_ms: int = 0) -> int:
        """A run time that so many per cent of such jobs stay within, given what it ran so far."""
        limit_ms = float(job.max_runtime_ms) if job.max_runtime_ms > elapsed_ms else math.inf
        view = self._view(job)
        longer = bisect_right(view.atoms, (elapsed_ms, math.inf)) if elapsed_ms else 0
        atoms = [*view.atoms[longer:], *_unseen(view.left, elapsed_ms, limit_ms)]
        atoms.sort()
        if atoms[-1][0] > limit_ms:
            cut = bisect_left(atoms, (limit_ms, 0.0))
            atoms[cut:] = sorted((limit_ms, weight) for _, weight in atoms[cut:])
        reached = list(accumulate(weight for _, weight in atoms))
        place = bisect_left(reached, reached[-1] * percent / 100)
        return max(1, round(atoms[min(place, len(atoms) - 1)][0]))

    def learn(self, job: Job, run_ms: int) -> None:
        """A job ended by itself after this time."""
        for level, key in enumerate(_keys(job)):
            group = self._groups.learning(key, _Group)
            group.runs.insert(0, run_ms / _scale(job, level))
            del group.runs[KEPT[level] :]
            group.learnt += 1

    def _view(self, job: Job) -> _View:
        """What every group has seen, made anew when one of them has learnt."""
        keys = _keys(job)
        groups = [self._groups.get(key) for key in keys]
        learnt = [0 if group is None else group.learnt for group in groups]
        # The finest key tells the coarser ones, so it stands for all of them.
        view = self._views.get(keys[0])
        if view is None or view.learnt != learnt:
            view = self._views[keys[0]] = _seen(job, groups, learnt)
            if len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
        return view


class _Group:
    """The last run times of a group, the latest first, and how many it has ever learnt."""

    __slots__ = ("learnt", "runs")

    def __init__(self) -> None:
        self.runs: list[float] = []
        self.learnt = 0


class _View(NamedTuple):
    """What was seen of one kind of job, by run time, and how much weight is left for the rest."""

    learnt: list[int]
    atoms: list[Atom]
    left: float


def _seen(job: Job, groups: list[_Group | None], learnt: list[int]) -> _View:
    """The part of the distribution that the groups know."""
    atoms: list[Atom] = []
    left = 1.0
    for level, group in enumerate(groups):
        if group is None:
            continue
        recency = RECENCY[level]
        total = (1 - recency ** len(group.runs)) / (1 - recency)
        part = left / (total + DOUBT)
        scale = _scale(job, level)
        parts = accumulate(repeat(recency, len(group.runs) - 1), mul, initial=part)
        atoms += zip([run * scale for run in group.runs], parts, strict=True)
        left *= DOUBT / (total + DOUBT)
    atoms.sort()
    return _View(learnt, atoms, left)


def _unseen(left: float, elapsed_ms: int, limit_ms: float) -> Iterator[Atom]:
    """The part of the distribution that nobody has seen yet: evenly spread over the scales."""
    prior = max(LEAST_PRIOR, left if not elapsed_ms else left * PRIOR_WHEN_RUNNING)
    low = max(elapsed_ms + 1, SHORTEST_MS)
    high = max(LONGEST_MS, LONGER * elapsed_ms) if math.isinf(limit_ms) else limit_ms
    ratio = max(1.0, high / low)
    for step in range(PRIOR_ATOMS):
        yield low * ratio ** ((step + 0.5) / PRIOR_ATOMS), prior / PRIOR_ATOMS


def _keys(job: Job) -> tuple[Hashable, ...]:
    """The groups of a job, from fine to coarse."""
    name = name_of(job)
    limit = job.max_runtime_ms
    request = job.members[0]
    size: Hashable = ("limit", limit) if limit else (job.gpu_milli, request.cpu_milli)
    return (
        ("kind", job.tenant, job.user, name, size),
        ("user", job.tenant, job.user, bool(limit)),
        ("size", job.tenant, limit or job.gpu_milli, bool(limit)),
        ("tenant", job.tenant, bool(limit)),
    )


def _scale(job: Job, level: int) -> float:
    """The user's and the tenant's groups learn parts of the limit, where there is one."""
    return float(job.max_runtime_ms) if job.max_runtime_ms and level in {1, 3} else 1.0
