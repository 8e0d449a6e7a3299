"""Expected run times from what ended before, online and without a training step.

Groups go from coarse to fine: the tenant, its jobs with as many GPUs, the user, the user's jobs
with as many GPUs, and those with the same name (or command). Each group keeps the logarithms of
its last few run times, and each finer group corrects the guess of the coarser one as far as it has
seen enough. Jobs of the same user that run already, longer than the guess, count as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

from gpu_scheduler.model.job import Job

KEPT = 30
PRIOR_WEIGHT = 0.25
FIRST_GUESS_MS = 10_000_000
GROWTH = 2.0


class _Group:
    """The last run times of a group, as logarithms."""

    __slots__ = ("logs", "total")

    def __init__(self) -> None:
        self.logs: deque[float] = deque(maxlen=KEPT)
        self.total = 0.0

    def add(self, log: float) -> None:
        if len(self.logs) == KEPT:
            self.total -= self.logs[0]
        self.logs.append(log)
        self.total += log


class History:
    """A predictor that remembers the last runs of every group."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._groups: dict[Hashable, _Group] = {}
        self._running: dict[tuple[str, str], dict[str, int]] = {}

    def expect(self, job: Job, now_ms: int) -> int:
        """The typical run time of jobs like this one, within the limit."""
        log, seen = self._guess(job)
        running = self._running.get((job.tenant, job.user))
        if running:
            guess_ms = math.exp(log)
            longer = [now_ms - start for start in running.values() if now_ms - start > guess_ms]
            if longer:
                weight = PRIOR_WEIGHT + seen
                log = (log * weight + sum(map(_log, longer))) / (weight + len(longer))
        expected = max(1, round(math.exp(log)))
        return min(expected, job.max_runtime_ms) if job.max_runtime_ms else expected

    def quantile(self, job: Job, percent: int) -> int:
        """A run time that so many per cent of jobs like this one stay within."""
        logs: list[float] = []
        for key in reversed(_groups_of(job)):
            group = self._groups.get(key)
            if group is not None:
                logs.extend(group.logs)
            if len(logs) >= KEPT:
                break
        if not logs:
            return self.expect(job, 0)
        logs.sort()
        place = min(len(logs) - 1, len(logs) * percent // 100)
        return max(1, round(math.exp(logs[place])))

    def begin(self, job: Job, now_ms: int) -> None:
        """Note that the user has one more job running."""
        self._running.setdefault((job.tenant, job.user), {})[job.id] = now_ms

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:  # noqa: ARG002
        """The median of jobs like it that ran longer; twice the time it has if there are none."""
        log = _log(elapsed_ms)
        for key in reversed(_groups_of(job)):
            group = self._groups.get(key)
            if group is not None:
                longer = sorted(known for known in group.logs if known > log)
                if longer:
                    expected = round(math.exp(longer[len(longer) // 2]))
                    return self._within_limit(job, max(elapsed_ms + 1, expected), elapsed_ms)
        return self._within_limit(job, round(elapsed_ms * GROWTH) + 1, elapsed_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:  # noqa: ARG002
        """Learn from a job that ended by itself."""
        running = self._running.get((job.tenant, job.user))
        if running is not None:
            running.pop(job.id, None)
        if run_ms is not None:
            log = _log(run_ms)
            for key in _groups_of(job):
                group = self._groups.get(key)
                if group is None:
                    group = self._groups[key] = _Group()
                group.add(log)

    def _guess(self, job: Job) -> tuple[float, int]:
        """The guess as a logarithm, and how much the finest group has seen."""
        log = _log(FIRST_GUESS_MS)
        seen = 0
        for key in _groups_of(job):
            group = self._groups.get(key)
            seen = 0
            if group is not None:
                seen = len(group.logs)
                log = (group.total + PRIOR_WEIGHT * log) / (seen + PRIOR_WEIGHT)
        return log, seen

    @staticmethod
    def _within_limit(job: Job, expected_ms: int, elapsed_ms: int) -> int:
        if job.max_runtime_ms > elapsed_ms:
            return min(expected_ms, job.max_runtime_ms)
        return expected_ms


def _groups_of(job: Job) -> list[Hashable]:
    """From coarse to fine."""
    gpus = job.gpu_milli
    name = job.name or (job.command[-1] if job.command else "")
    keys: list[Hashable] = [
        (job.tenant,),
        (job.tenant, gpus),
        (job.tenant, job.user, ""),
        (job.tenant, job.user, gpus),
    ]
    if name:
        keys.append((job.tenant, job.user, gpus, name))
    return keys


def _log(span_ms: int) -> float:
    return math.log(max(1, span_ms))
