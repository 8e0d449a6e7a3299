"""The results of the core: orders to nodes, and the outcome of each message."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Plan
from gpu_scheduler.model.service import Service
from gpu_scheduler.store.rows import EventRow, Write

EventData = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start an attempt on its nodes."""

    allocation: Allocation
    job: Job


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """Let the members of a gang run: all are prepared, and the commit is stored."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Stop an attempt; the reasons are listed in `jobs.lifecycle`."""

    allocation_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """Stop waiting for the reports of a node that is dead."""

    node_id: str


@dataclass(frozen=True, slots=True)
class WarnOrder:
    """Write a warning to the log of an attempt."""

    allocation_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TrustDeviceOrder:
    """An admin has put a device back into use: its node should trust it again.

    The node returns the `mark` with its readings once it has done so.
    """

    node_id: str
    index: int
    mark: int


@dataclass(frozen=True, slots=True)
class DisconnectOrder:
    """The credentials of a node changed: close its session."""

    node_id: str


Effect = (
    StartOrder | CommitOrder | StopOrder | NodeGone | WarnOrder | TrustDeviceOrder | DisconnectOrder
)


@dataclass(slots=True)
class Outcome:
    """The outcome of one message. Effects are carried out only after the writes are stored.

    `arrays` are changed array jobs; `add_array_rows` writes their rows once, at the end. `retried`
    are the tasks of an array that wait again.
    """

    writes: list[Write] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    arrays: dict[str, JobRecord] = field(default_factory=dict)
    plan: Plan | None = None
    jobs: list[Job] = field(default_factory=list)
    advance_reservation: AdvanceReservation | None = None
    service: Service | None = None
    retried: IntervalSet | None = None

    def keep(self, record: JobRecord) -> None:
        """Write the row of a job; the row of an array follows with `add_array_rows`."""
        if record.job.array is None:
            self.writes.append(record.row())
        else:
            self.arrays[record.job.id] = record

    def event(self, kind: str, at_ms: int, data: EventData = ()) -> None:
        """Write an event that belongs to no job."""
        self.writes.append(EventRow(at_ms=at_ms, kind=kind, data=data))

    def node_event(self, node_id: str, kind: str, at_ms: int, **more: str | int) -> None:
        """Write an event of a node."""
        self.event(kind, at_ms, (("node", node_id), *sorted(more.items())))

    def job_event(
        self, job: Job, kind: str, at_ms: int, *, task: int | None = None, data: EventData = ()
    ) -> None:
        """Write an event of a job, or of one task of an array."""
        self.writes.append(
            EventRow(at_ms=at_ms, kind=kind, job_id=job.id, task=task, user=job.user, data=data)
        )

    def merge(self, other: Outcome) -> None:
        """Add the outcome of another message of the same commit."""
        self.writes += other.writes
        self.effects += other.effects
        self.arrays |= other.arrays

    def add_array_rows(self) -> None:
        """Add the rows of changed arrays to the writes."""
        self.writes += [record.row() for record in self.arrays.values()]
        self.arrays.clear()
