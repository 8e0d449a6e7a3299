"""What the engine proposes. Somebody else applies it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.reasons import Reason

# --- Which devices of which nodes a job holds.


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of one device. A whole device has share 1000 and all of its memory."""

    index: int
    share_milli: int
    memory_mb: int
    mig_profile: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """What one member holds on one node.

    With a `lease_ms` the node stops it by itself when nobody has renewed that for so long.
    """

    member: int
    node_id: str
    devices: tuple[DeviceShare, ...]
    cpu_milli: int
    memory_mb: int
    lease_ms: int = 0

    @property
    def gpu_milli(self) -> int:
        """The shares of all devices together."""
        return sum(device.share_milli for device in self.devices)

    @property
    def gpu_memory_mb(self) -> int:
        """GPU memory over all devices."""
        return sum(device.memory_mb for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """That every member of a gang was prepared, and where they meet: from then on they may run.

    `hosts` are the addresses of the members' nodes in the order of ranks; all meet at the first.
    """

    at_ms: int
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All that one attempt of a job (or of one task of an array) holds, from when.

    While a gang over several nodes has no `rendezvous`, no command of its members runs anywhere.
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
        """Where the members are, in the order of their ranks."""
        return tuple(sorted(self.placements, key=lambda placement: placement.member))

    @property
    def spans_nodes(self) -> bool:
        """Tell whether its members are on several nodes, so that only a commit lets them run."""
        first = self.placements[0].node_id if self.placements else ""
        return any(placement.node_id != first for placement in self.placements)

    @property
    def is_held_back(self) -> bool:
        """Tell whether nothing of it can have run, whatever its nodes say or do not say."""
        return self.spans_nodes and self.rendezvous is None

    def is_on(self, node_id: str, member: int) -> bool:
        """Tell whether that member is on that node."""
        return any(p.node_id == node_id and p.member == member for p in self.placements)

    @property
    def gpu_milli(self) -> int:
        """GPUs over all members."""
        return sum(placement.gpu_milli for placement in self.placements)


# --- What the engine proposes. Somebody else applies it.


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job (or one task of an array) here and now."""

    job_id: str
    task: int | None
    placements: tuple[Placement, ...]
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Stop a running job so that another may start."""

    allocation_id: str
    job_id: str
    for_job_id: str
    ground: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place and a time that a blocked job keeps.

    `made_ms` is when the job first got one: older ones go before younger ones of the same class.
    With `claim`, victims are being cleared from the place and it is due at once. `slips` counts
    how often running jobs (never later decisions) have pushed it back. `promised_ms` is the time
    that was named first; without one it is `at_ms`.
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
        """When the job should run, however often that was put off since."""
        return self.at_ms if self.promised_ms is None else min(self.at_ms, self.promised_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Starts, evictions and reservations in the order in which they were decided.

    Reasons are kept per job, per job shape, or per tenant and job shape. A cycle that was cut short
    by its budget is not `complete`; the next one looks first at the head of the queue again, and
    then goes on behind the job with the number `resume_after`.
    """

    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    job_reasons: tuple[tuple[str, Reason], ...] = ()
    shape_reasons: tuple[tuple[str, Reason], ...] = ()
    tenant_reasons: tuple[tuple[str, str, Reason], ...] = ()
    examined: int = 0
    complete: bool = True
    resume_after: int = 0

    def to_json(self) -> str:
        """One canonical text, so that two plans can be compared byte for byte."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


LONGEST_MS = 366 * 86_400_000
"""A year is as long as a window may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSpec:
    """What somebody wants to reserve. Empty fields leave the choice to us."""

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
        """Tell whether a job would have a right to the devices."""
        return job.tenant == self.tenant and self.user in {"", job.user}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceReservation:
    """Whose, which devices (node and indices), from when, and until when (which is no part of it).

    Without a `user` it is for all users of the tenant. With `preempts`, jobs that still run on the
    devices shortly before the start are stopped for it if they can be preempted. `over_ms` is when
    it was over (None: it is not), `cancelled` says that somebody ended it. What had been `asked`
    for (node, model, indices; empty: anything) limits what may replace a device that broke.
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
        """Refuse a window without time or devices."""
        if not self.start_ms < self.end_ms <= self.start_ms + LONGEST_MS:
            raise InvalidRequest(
                f"reservation {self.id} lasts {self.end_ms - self.start_ms} ms; "
                "it must be more than 0 and at most a year"
            )
        if not self.gpu_count:
            raise InvalidRequest(f"reservation {self.id} has no GPU")

    @property
    def gpu_count(self) -> int:
        """How many devices are kept."""
        return sum(len(indices) for _, indices in self.devices)

    @property
    def owner(self) -> str:
        """Whom it is for, in words."""
        return f"{self.user} of {self.tenant}" if self.user else self.tenant

    def admits(self, job: Job) -> bool:
        """Tell whether a job may use the devices while the window lasts."""
        return job.tenant == self.tenant and self.user in {"", job.user}

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Tell whether any moment is in both."""
        return start_ms < self.end_ms and self.start_ms < end_ms
