"""What is remembered: one form for each kind of row, and for the end of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_scheduler.model.identity import Authority, JoinToken, NodeKey, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Placement, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant

SUBMITTED = "submitted"
"""The kind of the first event of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job and where it is in its life. For an array, `tasks` has the task numbers per state.

    `waited_ms` is how long it stood in the queue before its attempts so far; time on hold, before
    its begin time, before its dependencies were met and in a pause does not count. `met` are the
    dependencies (by job id) that hold it back no more. `expected_ms` is its expected run time as
    frozen when it was queued, `since_ms` when it was queued (0: it is not), `resume_ms` when its
    pause after a failure ends, `prolog_failures` how often in a row a prolog kept it from running,
    `misstarts` how often it did not begin in time or lost a member, `most_members` with how many an
    elastic gang may start next (0: all), `saved_ms` when the attempt
    that runs last saved its work (0: never).
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
    """How a job is run; written once, in the batch of the job itself or later."""

    job_id: str
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJobs:
    """Jobs that were submitted together and wait, with their launches and the event of each.

    They have ids of the common form and are alike but for number, name and command, which is also
    what the launch of each runs. Means the same as the rows of each; it is only faster.
    """

    at_ms: int
    jobs: tuple[Job, ...]
    expected_ms: tuple[int, ...]
    launch: Launch

    def rows(self) -> Iterator[JobRow | LaunchRow]:
        """The same as a row and a launch for each job."""
        for job, expected_ms in zip(self.jobs, self.expected_ms, strict=True):
            yield JobRow(
                job=job, state=JobState.PENDING, expected_ms=expected_ms, since_ms=self.at_ms
            )
            yield LaunchRow(job.id, replace(self.launch, argv=job.command))

    def events(self) -> Iterator[EventRow]:
        """What happened to each."""
        for job in self.jobs:
            yield EventRow(at_ms=self.at_ms, kind=SUBMITTED, job_id=job.id, user=job.user)


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A captured environment, shared by all jobs that were submitted from it.

    Kept apart from the jobs as it can hold secrets; dropped when no job that is kept names it.
    """

    name: str
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt that has ended: on what it ran, and how it ended.

    `gpu_models` divides what it held by model, as that may change under the same number.
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
    """The totals of one account in one period (None: in all); see `ledger.accounts`."""

    period_ms: int | None
    tenant: str
    user: str | None
    totals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShareRow:
    """The decayed usage of one account; see `ledger.shares`. Floats are kept to the last bit."""

    tenant: str
    user: str | None
    usage: float
    recent: float
    rate: int
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class WeekUsageRow:
    """GPU time of one account in the last week in which it used any; see `ledger.weeks`."""

    tenant: str
    user: str | None
    week_ms: int
    gpu_milli_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """The first start that a waiting job was told, and when it did start (None: not yet).

    `basis` is how it was found: reserved, forecast or rough.
    """

    job_id: str
    tenant: str
    user: str
    made_ms: int
    promised_ms: int
    basis: str
    start_ms: int | None = None

    @property
    def id(self) -> str:
        """By what it is removed."""
        return self.job_id


@dataclass(frozen=True, slots=True)
class RemovedEstimate:
    """An estimate that is judged no more, as the job was changed, held or ended."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """What was answered to a request with an idempotency key; `body` is the answer itself."""

    user: str
    key: str
    request_hash: str
    status: int
    body: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line of history."""

    at_ms: int
    kind: str
    job_id: str = ""
    task: int | None = None
    user: str = ""
    data: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """A notification that waits to be delivered: to whom, what, and the next try.

    `document` is JSON; its id stays the same however often it is sent.
    """

    id: str
    target: str
    at_ms: int
    document: str
    next_ms: int = 0
    tries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class RemovedNotice:
    """A notification that was delivered or given up."""

    id: str


@dataclass(frozen=True, slots=True)
class CursorRow:
    """How far somebody has read the history, and what it must remember (JSON)."""

    name: str
    sequence: int
    note: str = ""


class AuditRow(NamedTuple):
    """Who changed what, or tried to. `times` stands for so many alike, or so many jobs at once.

    A tuple, as one is made for every submission.
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
class RemovedAllocation:
    """An allocation that is held no more."""

    id: str


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """The place and the time that a waiting job was promised, by the job's id."""

    id: str
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class RemovedPromise:
    """A promise that is kept or given up."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedNode:
    """A node that is gone for good."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedTenant:
    """A tenant that is gone for good."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedWindow:
    """A reservation that nobody needs to know of any more."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedService:
    """A service whose last replica has ended after it was deleted."""

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
    | AnswerRow
    | EventRow
    | NoticeRow
    | RemovedNotice
    | CursorRow
    | Allocation
    | RemovedAllocation
    | PromiseRow
    | RemovedPromise
    | Node
    | RemovedNode
    | Tenant
    | RemovedTenant
    | Token
    | Authority
    | JoinToken
    | NodeKey
    | AuditRow
    | PoolQuota
    | WeekUsageRow
    | EstimateRow
    | RemovedEstimate
    | AdvanceReservation
    | RemovedWindow
    | Service
    | RemovedService
)
