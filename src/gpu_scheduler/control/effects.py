"""What comes out of the core: orders to nodes, and what each message led to."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Plan
from gpu_scheduler.model.service import Service
from gpu_scheduler.store.rows import Write


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start an attempt on its nodes."""

    allocation: Allocation
    job: Job


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """Let the members of a gang run: all of them are prepared, and that is stored."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Stop an attempt; for the grounds see `control.stopping`."""

    allocation_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is dead for certain: no word of it about its work is to be waited for."""

    node_id: str


@dataclass(frozen=True, slots=True)
class WarnOrder:
    """Write a line into the log of an attempt, about what may end it."""

    allocation_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TrustDeviceOrder:
    """Somebody has looked after a device: its node should trust it again.

    The `mark` comes back with its readings once that is done.
    """

    node_id: str
    index: int
    mark: int


@dataclass(frozen=True, slots=True)
class DisconnectOrder:
    """Who speaks for a node does so no more: end its session."""

    node_id: str


Effect = (
    StartOrder | CommitOrder | StopOrder | NodeGone | WarnOrder | TrustDeviceOrder | DisconnectOrder
)


@dataclass(slots=True)
class Outcome:
    """What one message led to. Effects are released only after the writes are kept.

    Of `arrays` that have changed the rows are still to be written. `retried` are the tasks of an
    array that wait again.
    """

    writes: list[Write] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    arrays: dict[str, JobRecord] = field(default_factory=dict)
    plan: Plan | None = None
    jobs: list[Job] = field(default_factory=list)
    window: AdvanceReservation | None = None
    service: Service | None = None
    retried: IntervalSet | None = None

    def keep(self, record: JobRecord) -> None:
        """Write how a job stands; an array, which tells of all its tasks, when all is done."""
        if record.job.array is None:
            self.writes.append(record.row())
        else:
            self.arrays[record.job.id] = record

    def take(self, other: Outcome) -> None:
        """Add what another message led to, to be written and released together."""
        self.writes += other.writes
        self.effects += other.effects
        self.arrays |= other.arrays

    def settle(self) -> None:
        """Write how the arrays stand now."""
        self.writes += [record.row() for record in self.arrays.values()]
        self.arrays.clear()
