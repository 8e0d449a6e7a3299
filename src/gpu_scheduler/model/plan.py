"""Allocations, the plan that the engine proposes, reservations and advance reservations.

The control core applies a plan. `Reservation` is a future start that the engine keeps for a blocked
job; an `AdvanceReservation` is made by an admin.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of one device. A whole device has share 1000 and all of its memory."""

    index: int
    share_milli: int
    memory_mb: int
    mig_profile: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The resources of one member on one node.

    With a `lease_ms` the node stops the member itself if the lease is not renewed in that time.
    """

    member: int
    node_id: str
    devices: tuple[DeviceShare, ...]
    cpu_milli: int
    memory_mb: int
    lease_ms: int = 0

    @property
    def gpu_milli(self) -> int:
        """The sum of the shares of all devices."""
        return sum(device.share_milli for device in self.devices)

    @property
    def gpu_memory_mb(self) -> int:
        """GPU memory over all devices."""
        return sum(device.memory_mb for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The commit of a gang: every member was prepared, and from now on the members may run.

    `hosts` are the node addresses of the members by rank; the first is the master.
    """

    at_ms: int
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All resources of one attempt of a job, or of one task of an array.

    While a gang over several nodes has no `rendezvous`, none of its members runs a command.
    """

    id: str
    job_id: str
    task: int | None
    attempt: int
    placements: tuple[Placement, ...]
    start_ms: int
    rendezvous: Rendezvous | None = None

    @property
    def by_rank(self) -> tuple[Placement, ...]:
        """The placements in the order of ranks."""
        return tuple(sorted(self.placements, key=lambda placement: placement.member))

    @property
    def spans_nodes(self) -> bool:
        """Tell whether its members are on several nodes, so that it needs a commit to run."""
        first = self.placements[0].node_id if self.placements else ""
        return any(placement.node_id != first for placement in self.placements)

    @property
    def is_held_back(self) -> bool:
        """Tell whether it waits for the commit, so that nothing of it can have run."""
        return self.spans_nodes and self.rendezvous is None

    def is_on(self, node_id: str, member: int) -> bool:
        """Tell whether this member is on this node."""
        return any(p.node_id == node_id and p.member == member for p in self.placements)

    @property
    def gpu_milli(self) -> int:
        """Milli-GPUs of all members."""
        return sum(placement.gpu_milli for placement in self.placements)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job, or one task of an array, now."""

    job_id: str
    task: int | None
    placements: tuple[Placement, ...]
    backfilled: bool = False


class PreemptionReason(StrEnum):
    """Why a running job may be evicted; the `ground` of its event `evicting`.

    The engine decides for another job by class, for `interactive` work, to reclaim what was `lent`,
    after an `overrun`, or by the `feedback` and `remaining` policies. Without another job, an
    advance `reservation` begins or the deadline of a `drain` has come.
    """

    CLASS = "class"
    INTERACTIVE = "interactive"
    LENT = "lent"
    OVERRUN = "overrun"
    FEEDBACK = "feedback"
    REMAINING = "remaining"
    RESERVATION = "reservation"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Eviction:
    """Stop a running job so that another may start."""

    allocation_id: str
    job_id: str
    for_job_id: str
    ground: PreemptionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Future resources of a blocked job.

    `made_ms` is when the job first got a reservation: older ones go first within a class. With
    `claim`, victims are being evicted from the resources, and the job starts when they are gone.
    `slips` counts how often running jobs (never later decisions) have delayed it. `promised_ms` is
    the start time that was shown first; without one it is `at_ms`.
    """

    job_id: str
    job_number: int
    at_ms: int
    until_ms: int
    placements: tuple[Placement, ...]
    made_ms: int = 0
    claim: bool = False
    slips: int = 0
    promised_ms: int | None = None

    @property
    def due_ms(self) -> int:
        """When the job should start, before any delay."""
        return self.at_ms if self.promised_ms is None else min(self.at_ms, self.promised_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A place in the order of waiting jobs, where a cycle ran out of its budget.

    `order_value` and `number` are those of the last job that the cycle considered, and
    `penalties_ms` is what fair share added to the keys of the accounts then. So every job can be
    compared with this place, whether or not that last job still waits and whatever the accounts
    have used since.
    """

    order_value: int
    number: int
    penalties_ms: tuple[tuple[tuple[str, str], int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Starts, evictions and reservations in the order in which they were decided.

    Reasons are kept per job, per job shape, per tenant and job shape, or per tenant, user (empty:
    all users) and pool for all jobs that need at least so many milli-GPUs. A cycle that ran out of
    its budget is not `complete`; the next one examines the head of the queue again, and then
    continues behind `resume_after`.
    """

    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    job_reasons: tuple[tuple[str, Reason], ...] = ()
    shape_reasons: tuple[tuple[str, Reason], ...] = ()
    tenant_reasons: tuple[tuple[str, str, Reason], ...] = ()
    account_reasons: tuple[tuple[str, str, Pool, int, Reason], ...] = ()
    examined: int = 0
    complete: bool = True
    resume_after: ResumePoint | None = None

    def to_json(self) -> str:
        """One canonical text, to compare two plans byte for byte."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


LONGEST_MS = 366 * 86_400_000
"""The longest advance reservation: a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSpec:
    """A request for an advance reservation. The scheduler chooses what empty fields leave open."""

    tenant: str
    gpus: int
    start_ms: int
    end_ms: int
    user: str = ""
    name: str = ""
    node: str = ""
    gpu_model: str = ""
    indices: tuple[int, ...] = ()
    preempts: bool = False

    def admits(self, job: Job) -> bool:
        """Tell whether a job may use the reserved devices."""
        return job.tenant == self.tenant and self.user in {"", job.user}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceReservation:
    """Devices (node and indices) that are reserved for a tenant or user, from start to end.

    Without a `user` it is for all users of the tenant. With `preempts`, preemptible jobs that still
    run on the devices shortly before the start are stopped. `over_ms` is when it ended (None: it
    has not). The `asked_*` fields (empty: anything) limit which devices may replace a broken one.
    """

    id: str
    number: int
    tenant: str
    start_ms: int
    end_ms: int
    devices: tuple[tuple[str, tuple[int, ...]], ...]
    user: str = ""
    name: str = ""
    preempts: bool = False
    made_by: str = ""
    made_ms: int = 0
    over_ms: int | None = None
    cancelled: bool = False
    asked_node: str = ""
    asked_model: str = ""
    asked_indices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Reject a reservation without duration or devices."""
        if not self.start_ms < self.end_ms <= self.start_ms + LONGEST_MS:
            raise InvalidRequest(
                f"reservation {self.id} lasts {self.end_ms - self.start_ms} ms; "
                "it must be more than 0 and at most a year"
            )
        if not self.gpu_count:
            raise InvalidRequest(f"reservation {self.id} has no GPU")

    @property
    def gpu_count(self) -> int:
        """The number of reserved devices."""
        return sum(len(indices) for _, indices in self.devices)

    @property
    def owner(self) -> str:
        """Tenant, or user and tenant, as text."""
        return f"{self.user} of {self.tenant}" if self.user else self.tenant

    def admits(self, job: Job) -> bool:
        """Tell whether a job may use the devices during the reservation."""
        return job.tenant == self.tenant and self.user in {"", job.user}

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Tell whether the two time spans overlap."""
        return start_ms < self.end_ms and self.start_ms < end_ms
