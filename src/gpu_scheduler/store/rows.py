"""What is remembered, and the contract that every store keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import JobState
from gpu_scheduler.model.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job and where it is in its life. For an array, `tasks` has the task numbers per state.

    `waited_ms` is how long it stood in the queue before its attempts so far; time on hold, before
    its begin time, before its dependencies were met and in a pause does not count.
    """

    job: Job
    state: JobState
    reason: str = ""
    attempt: int = 0
    preemptions: int = 0
    exit_code: int | None = None
    signal: int | None = None
    first_start_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    waited_ms: int = 0
    attained_ms: int = 0
    tasks: tuple[tuple[JobState, IntervalSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line of history."""

    at_ms: int
    kind: str
    job_id: str = ""
    task: int | None = None
    data: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True)
class RemovedAllocation:
    """An allocation that is held no more."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedNode:
    """A node that is gone for good."""

    id: str


Write = JobRow | EventRow | Allocation | RemovedAllocation | Node | RemovedNode | Tenant | PoolQuota


class Store(Protocol):
    """All or nothing: a batch of writes is kept whole, or an error is raised and none of it is."""

    def commit(self, writes: list[Write]) -> None:
        """Keep a batch."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job."""
        ...

    def jobs(self) -> list[JobRow]:
        """All jobs that are kept, by number."""
        ...

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        ...

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        ...

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        ...

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        ...

    def events(self, after: int = 0) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""
        ...
