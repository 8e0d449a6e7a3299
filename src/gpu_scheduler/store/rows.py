"""The row types that a store writes and reads, and the types that remove rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.identity import Authority, JoinToken, NodeKey, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Placement, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant

SUBMITTED = "submitted"
"""The kind of the first event of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job and its progress. For an array, `tasks` has the task numbers per state.

    `waited_ms` is its time in the queue before its attempts so far; time on hold, before its begin
    time, waiting for dependencies and in a retry pause does not count. `met` are the dependencies
    (job ids) that are fulfilled. `expected_ms` is the expected run time, fixed when it was queued;
    `since_ms` is when it was queued (0: not queued); `resume_ms` is the end of the pause after a
    failure; `prolog_failures` counts failures of the prolog in a row; `misstarts` counts attempts
    that did not begin in time or lost a member; `most_members` limits the members of the next start
    of an elastic gang (0: no limit); `saved_ms` is the last checkpoint of the running attempt (0:
    none); `image_digest` is that of the image in the first attempt by a container engine of root.
    """

    job: Job
    state: JobState
    reason: str = ""
    attempt: int = 0
    preemptions: int = 0
    failures: int = 0
    exit_code: int | None = None
    signal: int | None = None
    first_start_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    waited_ms: int = 0
    attained_ms: int = 0
    served_ms: int = 0
    resume_ms: int = 0
    expected_ms: int = 0
    since_ms: int = 0
    protected: bool = False
    stop_why: str = ""
    prolog_failures: int = 0
    misstarts: int = 0
    most_members: int = 0
    saved_ms: int = 0
    image_digest: str = ""
    met: tuple[str, ...] = ()
    tasks: tuple[tuple[JobState, IntervalSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task of an array, from its first start on."""

    job_id: str
    task: int
    state: JobState
    attempt: int = 0
    preemptions: int = 0
    failures: int = 0
    exit_code: int | None = None
    signal: int | None = None
    first_start_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    waited_ms: int = 0
    attained_ms: int = 0
    served_ms: int = 0
    resume_ms: int = 0
    protected: bool = False
    stop_why: str = ""
    prolog_failures: int = 0
    misstarts: int = 0
    saved_ms: int = 0


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """The launch of a job; written once, in the batch of the job itself or later."""

    job_id: str
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJobs:
    """Pending jobs of one submission, with their launches and one event each.

    Their ids have the form `job-<number>`, and they differ only in number, name and command; the
    launch of each runs its command. Equivalent to the rows of each job, but faster to write.
    """

    at_ms: int
    jobs: tuple[Job, ...]
    expected_ms: tuple[int, ...]
    launch: Launch

    def rows(self) -> Iterator[JobRow | LaunchRow]:
        """Yield the row and the launch of each job."""
        for job, expected_ms in zip(self.jobs, self.expected_ms, strict=True):
            yield JobRow(
                job=job, state=JobState.PENDING, expected_ms=expected_ms, since_ms=self.at_ms
            )
            yield LaunchRow(job.id, replace(self.launch, argv=job.command))

    def events(self) -> Iterator[EventRow]:
        """Yield the event of each job."""
        for job in self.jobs:
            yield EventRow(at_ms=self.at_ms, kind=SUBMITTED, job_id=job.id, user=job.user)


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A captured environment, shared by all jobs that were submitted with it.

    It has a table of its own because it can hold secrets; it is deleted when no job needs it.
    """

    name: str
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt that has ended: its placements and its result.

    `gpu_models` divides its GPUs by model, because a device can be replaced by another model.
    """

    allocation_id: str
    job_id: str
    task: int | None
    attempt: int
    placements: tuple[Placement, ...]
    start_ms: int
    end_ms: int
    state: JobState
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    gpu_models: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The totals of one account in one period (None: in all); see `ledger.usage_totals`."""

    period_ms: int | None
    tenant: str
    user: str | None
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShareRow:
    """The decayed usage of one account; see `ledger.decayed_usage`. Floats are stored exactly."""

    tenant: str
    user: str | None
    usage: float
    recent: float
    rate: int
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class WeekUsageRow:
    """GPU time of one account in the last week in which it used any."""

    tenant: str
    user: str | None
    week_ms: int
    gpu_milli_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """The first estimated start of a pending job, and its actual start (None: not yet).

    `basis` is the source of the estimate: reserved, forecast or rough. `forecast_ms` is the start
    before calibration; four in five starts are expected from `earliest_ms` to `latest_ms` (all
    None: the estimate has no range).
    """

    job_id: str
    tenant: str
    user: str
    made_ms: int
    promised_ms: int
    basis: str
    start_ms: int | None = None
    forecast_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None

    @property
    def id(self) -> str:
        """The key, by which `Removed` names it."""
        return self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """The response to a request with an idempotency key, for repeated requests."""

    user: str
    key: str
    request_hash: str
    status: int
    body: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the history."""

    at_ms: int
    kind: str
    job_id: str = ""
    task: int | None = None
    user: str = ""
    data: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """A notification that waits to be delivered, and its next attempt.

    `document` is JSON; its id stays the same in every attempt.
    """

    id: str
    target: str
    at_ms: int
    document: str
    next_ms: int = 0
    tries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class CursorRow:
    """The position of a reader in the history, and its state (JSON)."""

    name: str
    sequence: int
    note: str = ""


class AuditRow(NamedTuple):
    """One entry of the audit log; `times` counts equal entries, or the jobs of one request.

    It is a tuple for speed, because every submission makes one.
    """

    at_ms: int
    user: str
    origin: str
    via: str
    action: str
    target: str
    outcome: str
    code: str = ""
    detail: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """The reservation of a pending job, by the job's id."""

    id: str
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Removed:
    """A row that no longer exists, by its type and id; only types in `tables.REMOVABLE`."""

    kind: type
    id: str


Write = (
    JobRow
    | TaskRow
    | LaunchRow
    | NewJobs
    | EnvironmentRow
    | AttemptRow
    | AttemptMeasure
    | DeviceHour
    | UsageRow
    | ShareRow
    | ResponseRow
    | EventRow
    | NoticeRow
    | CursorRow
    | Allocation
    | ReservationRow
    | Node
    | Tenant
    | Token
    | Authority
    | JoinToken
    | NodeKey
    | AuditRow
    | PoolQuota
    | WeekUsageRow
    | EstimateRow
    | AdvanceReservation
    | Service
    | Removed
)
