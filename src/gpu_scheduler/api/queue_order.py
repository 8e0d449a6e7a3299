"""Sorted lists of running and waiting jobs for live screens, cached per caller.

Queue order is computed only as far as it is shown; any other order needs all jobs. A list is cached
until the state changes, and is not computed again before twenty times its own duration has passed:
screens use a small part of a core however long the queue is.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge

from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import HOLDING, JobState

PAUSE_FACTOR = 20
MOST_CACHED = 16
EVERYTHING = 1 << 62
SORTS = ("queue", "number", "user", "name", "state", "gpus", "priority", "time", "tenant")

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class SortedJobs:
    """Job ids in the requested order, and the number of jobs by state.

    `ids` may be only the first of `total`; `running` of them come before the queue.
    """

    version: int
    fresh_until: float
    ids: list[str]
    positions: dict[str, int]
    counts: dict[str, int]
    total: int
    running: int = 0

    def covers(self, need: int) -> bool:
        """Whether it has the first `need` jobs."""
        return len(self.ids) >= min(need, self.total)


class SortedJobsCache:
    """The last sorted lists of one service."""

    def __init__(
        self,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`work_clock` measures the CPU time of a computation."""
        self._service = service
        self._clock = clock
        self._work_clock = work_clock
        self._cached: OrderedDict[Key, SortedJobs] = OrderedDict()

    def find(
        self, caller: Caller, sort: str, words: tuple[str, ...], user: str, need: int = EVERYTHING
    ) -> SortedJobs:
        """Return the jobs of a user that match all words; at least the first `need` of them."""
        seen_by = (caller.user, caller.role, caller.administers, caller.tenants, caller.confined)
        key = (seen_by, sort, words, user)
        version = self._service.loop_metrics.messages
        cached = self._cached.get(key)
        is_fresh = cached is not None and (
            cached.version == version or self._clock() < cached.fresh_until
        )
        if cached is not None and is_fresh and cached.covers(need):
            self._cached.move_to_end(key)
            return cached
        began = self._work_clock()
        total, running = 0, 0
        if sort == "queue" and not words and not user:
            ids, counts, running = self._queue_head(need)
            total = len(self._service.core.state.jobs)
        else:
            ids, counts = self._sort(caller, sort, words, user)
            total = len(ids)
        fresh_until = self._clock() + PAUSE_FACTOR * (self._work_clock() - began)
        positions = {job_id: position for position, job_id in enumerate(ids)}
        sorted_jobs = SortedJobs(version, fresh_until, ids, positions, counts, total, running)
        self._cached[key] = sorted_jobs
        self._cached.move_to_end(key)
        while len(self._cached) > MOST_CACHED:
            self._cached.popitem(last=False)
        return sorted_jobs

    def _queue_head(self, need: int) -> tuple[list[str], dict[str, int], int]:
        """Return the running jobs and as much of the queue as needed, by merging its lines."""
        state = self._service.core.state
        counts = {"running": 0, "scheduled": 0, "pending": 0, "held": 0}
        before, behind = [], []
        for record in state.jobs.values():
            if record.queued and not record.tasks:
                continue
            job_state = record.state
            counts["held" if _is_held(record, job_state) else _counted(job_state)] += 1
            if job_state in HOLDING:
                before.append(record.job)
            elif not record.queued:
                behind.append(record.job)
        counts["pending"] += len(state.jobs) - sum(counts.values())
        before.sort(key=lambda job: job.number)
        ids = [job.id for job in before]
        running = set(ids)
        for job_id in self._queue():
            if len(ids) >= need:
                return ids, counts, len(before)
            if job_id not in running:
                ids.append(job_id)
        ids += [job.id for job in sorted(behind, key=lambda job: job.number)]
        return ids, counts, len(before)

    def _queue(self) -> Iterator[str]:
        """Yield the waiting jobs in the engine's order."""
        queue = self._service.core.state.cluster.queue
        standings = FairShare(self._service.core.state.cluster)
        lines = []
        for group in queue.groups.values():
            penalty = standings.penalty_ms(group.key)
            lines += [_shifted(line, penalty) for line in group.by_shape.values()]
        for _, number in merge(*lines):
            yield queue.entries[number].waiting.job.id

    def _sort(
        self, caller: Caller, sort: str, words: tuple[str, ...], user: str
    ) -> tuple[list[str], dict[str, int]]:
        state = self._service.core.state
        counts = {"running": 0, "scheduled": 0, "pending": 0, "held": 0}
        chosen: list[tuple[Key, str]] = []
        keys = _Keys(self._service, sort.removeprefix("-"))
        for job_id, record in state.jobs.items():
            job_state = record.state
            counts["held" if _is_held(record, job_state) else _counted(job_state)] += 1
            if user and record.job.user != user:
                continue
            sees = caller.may_see(record.job.user, record.job.tenant)
            if words and not _has(record, job_state, words, sees):
                continue
            chosen.append((keys.of(record, job_state, sees), job_id))
        # Reverse only the requested key: jobs with equal keys stay in order of their numbers.
        chosen.sort()
        if sort.startswith("-"):
            chosen.sort(key=lambda item: item[0][0], reverse=True)  # type: ignore[arg-type,return-value]
        return [job_id for _, job_id in chosen], counts


def _shifted(line: list[tuple[int, int]], penalty_ms: int) -> Iterator[tuple[int, int]]:
    return ((key + penalty_ms, number) for key, number in line)


class _Keys:
    """Sort keys of jobs. All keys of one sort have the same shape and end with the job number."""

    def __init__(self, service: Service, sort: str) -> None:
        self._cluster = service.core.state.cluster
        self._standings = FairShare(self._cluster)
        self._sort = sort

    def of(self, record: JobRecord, state: JobState, sees: bool) -> Key:
        job = record.job
        key: object
        match self._sort:
            case "queue":
                key = self._line(record, state)
            case "number":
                key = job.number
            case "gpus":
                key = job.gpu_milli
            case "time":
                task = record.only_task
                start_ms = record.first_start_ms if task is None else task.start_ms
                key = job.submit_ms if start_ms is None else start_ms
            case "priority":
                key = -job.priority if sees else 1
            case "user":
                key = job.user
            case "state":
                key = state.value
            case "tenant":
                key = job.tenant
            case _:
                key = job.name if sees else ""
        return key, job.number

    def _line(self, record: JobRecord, state: JobState) -> tuple[int, int]:
        """Sort running jobs first, then the queue in the engine's order, then all others."""
        if state in HOLDING:
            return 0, 0
        entry = self._cluster.queue.entries.get(record.job.number)
        if entry is None:
            return 2, 0
        return 1, entry.key + self._standings.penalty_ms(entry.group.key)


def _is_held(record: JobRecord, state: JobState) -> bool:
    return state is JobState.PENDING and record.job.hold


def _counted(state: JobState) -> str:
    return state.value if state in HOLDING else "pending"


def _has(record: JobRecord, state: JobState, words: tuple[str, ...], sees: bool) -> bool:
    job = record.job
    text = f"{job.id} {job.user} {job.tenant} {state.value}"
    if sees:
        text = f"{text} {job.name} {' '.join(job.command)}"
    text = text.lower()
    return all(word in text for word in words)
