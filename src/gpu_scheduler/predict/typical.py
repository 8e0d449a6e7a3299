"""The typical run time of jobs like this one: one steady number, for the order of the queue.

Groups go from coarse to fine: the tenant, its jobs with as many GPUs, the user, the user's jobs
with as many GPUs, and those with the same name or command. Each keeps the logarithms of its last
run times, and each finer group corrects the guess of the coarser one as far as it has seen enough.
Jobs of the same user that already run longer than the guess count as well.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.recent import Recent

KEPT = 30
PRIOR_WEIGHT = 0.25
FIRST_GUESS_MS = 10_000_000
LONGEST_NAME = 500
ENOUGH = 4
"""So many runs of the same size say something of a job; of its own name, one does."""


class Typical:
    """Averages of logarithms per group, and the jobs that run."""

    def __init__(self) -> None:
        """Start knowing nothing. Starts of what runs are kept by job, and sorted by account."""
        self._groups: Recent[_Group] = Recent()
        self._running: dict[str, list[int]] = {}
        self._starts: dict[tuple[str, str], list[int]] = {}

    def expect(self, job: Job, now_ms: int) -> int:
        """The typical run time, seen from now."""
        log, seen = self._guess(_coarse_keys(job), math.log(FIRST_GUESS_MS), 0)
        name = name_of(job)
        if name:
            log, seen = self._guess([(job.tenant, job.user, job.gpu_milli, name)], log, seen)
        return self._seen_from(job, log, seen, now_ms)

    def knows(self, job: Job) -> bool:
        """Tell whether enough was seen for more than a guess."""
        tenant, user, gpus = job.tenant, job.user, job.gpu_milli
        # What many jobs have in common comes first: it is soon found, and mostly enough.
        return (
            self._seen((tenant, user, gpus)) >= ENOUGH
            or self._seen((tenant, gpus)) >= ENOUGH
            or self._seen(_keys(job)[-1]) > 0
        )

    def _seen(self, key: Hashable) -> int:
        group = self._groups.get(key)
        return 0 if group is None else len(group.logs)

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """The typical run times of jobs that differ only in number, name and command.

        Most of them have names that were never seen: those are expected alike.
        """
        first = jobs[0]
        tenant, user, gpus = first.tenant, first.user, first.gpu_milli
        log, seen = self._guess(_coarse_keys(first), math.log(FIRST_GUESS_MS), 0)
        unknown_ms = self._seen_from(first, log, 0, now_ms)
        nameless_ms = self._seen_from(first, log, seen, now_ms)
        groups = self._groups
        expected = []
        for job in jobs:
            name = name_of(job)
            if not name:
                expected.append(nameless_ms)
            elif (tenant, user, gpus, name) in groups:
                expected.append(self.expect(job, now_ms))
            else:
                expected.append(unknown_ms)
        return expected

    def _guess(self, keys: list[Hashable], log: float, seen: int) -> tuple[float, int]:
        """A guess corrected by these groups, and how much the last of them has seen."""
        for key in keys:
            group = self._groups.get(key)
            seen = 0
            if group is not None:
                seen = len(group.logs)
                log = (group.total + PRIOR_WEIGHT * log) / (seen + PRIOR_WEIGHT)
        return log, seen

    def _seen_from(self, job: Job, log: float, seen: int, now_ms: int) -> int:
        """A guess corrected by what runs for longer."""
        starts = self._starts.get((job.tenant, job.user))
        if starts:
            longer = starts[: bisect_left(starts, now_ms - math.exp(log))]
            if longer:
                weight = PRIOR_WEIGHT + seen
                logs = sum(map(math.log, [now_ms - start_ms for start_ms in longer]))
                log = (log * weight + logs) / (weight + len(longer))
        return max(1, round(math.exp(log)))

    def begin(self, job: Job, now_ms: int) -> None:
        """Note that the user has one more job, or task of an array, running."""
        insort(self._starts.setdefault((job.tenant, job.user), []), now_ms)
        self._running.setdefault(job.id, []).append(now_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Note that one job or task less runs.

        Which of an array's tasks it was is told by when it must have started, else it was the one
        that has run for the longest time.
        """
        running = self._running.get(job.id)
        if not running:
            return
        begun_ms = 0 if run_ms is None else now_ms - run_ms
        start_ms = min(running, key=lambda start: (abs(start - begun_ms), start))
        running.remove(start_ms)
        if not running:
            del self._running[job.id]
        account = (job.tenant, job.user)
        starts = self._starts[account]
        del starts[bisect_left(starts, start_ms)]
        if not starts:
            del self._starts[account]

    def learn(self, job: Job, run_ms: int) -> None:
        """A job ended by itself after this time."""
        log = math.log(max(1, run_ms))
        for key in _keys(job):
            self._groups.learning(key, _Group).add(log)


class _Group:
    """The last run times of a group, as logarithms."""

    __slots__ = ("logs", "total")

    def __init__(self) -> None:
        self.logs: list[float] = []
        self.total = 0.0

    def add(self, log: float) -> None:
        if len(self.logs) == KEPT:
            self.total -= self.logs.pop(0)
        self.logs.append(log)
        self.total += log


def _keys(job: Job) -> list[Hashable]:
    keys = _coarse_keys(job)
    name = name_of(job)
    if name:
        keys.append((job.tenant, job.user, job.gpu_milli, name))
    return keys


def _coarse_keys(job: Job) -> list[Hashable]:
    gpus = job.gpu_milli
    return [
        (job.tenant,),
        (job.tenant, gpus),
        (job.tenant, job.user, "all"),
        (job.tenant, job.user, gpus),
    ]


def name_of(job: Job) -> str:
    """What the same kind of work is known by: its name, else (the beginning of) its command."""
    return job.name or " ".join(job.command)[:LONGEST_NAME]
