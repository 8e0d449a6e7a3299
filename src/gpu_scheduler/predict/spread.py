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
from collections import deque
from collections.abc import Hashable, Iterator

from gpu_scheduler.model.job import Job

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

Atom = tuple[float, float]
"""A run time in milliseconds and its weight."""


class Spread:
    """The last run times of every group, and what they say of a job."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._groups: dict[Hashable, deque[float]] = {}

    def quantile(self, job: Job, percent: int, elapsed_ms: int = 0) -> int:
        """A run time that so many per cent of such jobs stay within, given what it ran so far."""
        atoms = sorted(self._atoms(job, elapsed_ms))
        wanted = sum(weight for _, weight in atoms) * percent / 100
        reached = 0.0
        for value, weight in atoms:
            reached += weight
            if reached >= wanted:
                return max(1, round(value))
        return max(1, round(atoms[-1][0]))

    def learn(self, job: Job, run_ms: int) -> None:
        """A job ended by itself after this time."""
        for level, key in enumerate(_keys(job)):
            runs = self._groups.get(key)
            if runs is None:
                runs = self._groups[key] = deque(maxlen=KEPT[level])
            runs.appendleft(run_ms / _scale(job, level))

    def _atoms(self, job: Job, elapsed_ms: int) -> Iterator[Atom]:
        """The distribution: what each group has seen, then what nobody has seen yet."""
        limit_ms = float(job.max_runtime_ms) if job.max_runtime_ms > elapsed_ms else math.inf
        left = 1.0
        for level, key in enumerate(_keys(job)):
            runs = self._groups.get(key)
            if not runs:
                continue
            recency = RECENCY[level]
            total = (1 - recency ** len(runs)) / (1 - recency)
            part = left / (total + DOUBT)
            scale = _scale(job, level)
            for run in runs:
                value = min(run * scale, limit_ms)
                if value > elapsed_ms:
                    yield value, part
                part *= recency
            left *= DOUBT / (total + DOUBT)
        prior = max(LEAST_PRIOR, left if not elapsed_ms else left * PRIOR_WHEN_RUNNING)
        low = max(elapsed_ms + 1, SHORTEST_MS)
        high = max(LONGEST_MS, LONGER * elapsed_ms) if math.isinf(limit_ms) else limit_ms
        ratio = max(1.0, high / low)
        for step in range(PRIOR_ATOMS):
            value = low * ratio ** ((step + 0.5) / PRIOR_ATOMS)
            yield min(value, limit_ms), prior / PRIOR_ATOMS


def _keys(job: Job) -> tuple[Hashable, ...]:
    """The groups of a job, from fine to coarse."""
    name = job.name or (job.command[-1] if job.command else "")
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
