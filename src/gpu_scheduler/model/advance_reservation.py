"""A reservation that a person made: certain devices are a tenant's (or one user's) for a while.

The engine has reservations of its own, for jobs that are blocked; so this one is called a window in
the code, and a reservation everywhere that people look.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job

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
