"""What the engine proposes. Somebody else applies it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gpu_scheduler.model.allocation import Placement
from gpu_scheduler.model.reasons import Reason


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
