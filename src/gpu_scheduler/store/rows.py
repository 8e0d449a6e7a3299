"""What is remembered, and the contract that every store keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from gpu_scheduler.model.allocation import Allocation, Placement
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measures import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.node_key import Authority, Identity, JoinToken, NodeKey
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import JobState
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.model.token import Token
from gpu_scheduler.model.window import Window
from gpu_scheduler.store.questions import AuditQuery, JobQuery, SweepCount

SUBMITTED = "submitted"
"""The kind of the first event of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job and where it is in its life. For an array, `tasks` has the task numbers per state.

    `waited_ms` is how long it stood in the queue before its attempts so far; time on hold, before
    its begin time, before its dependencies were met and in a pause does not count. `met` are the
    dependencies (by job id) that hold it back no more. `expected_ms` is its expected run time as
    frozen when it was queued, `since_ms` when it was queued (0: it is not), `resume_ms` when its
    pause after a failure ends, `prolog_failures` how often in a row a prolog kept it from running.
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
    | Window
    | RemovedWindow
    | Service
    | RemovedService
)


class Store(Protocol):
    """All or nothing: a batch of writes is kept whole, or an error is raised and none of it is.

    Reads see what has been committed and nothing else.
    """

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch, and return the sequence number of the last event so far.

        Events keep their order and get consecutive numbers, so those of this batch are the last
        ones up to it. Of several rows with one key the last counts. A job that is written again
        after it was archived comes back.
        """
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        ...

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        ...

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        ...

    def recent_ends(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        ...

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        ...

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        ...

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        ...

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user by name and state, archived jobs left out.

        `within` are the tenants whose jobs count (None: all).
        """
        ...

    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        ...

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        ...

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """How these jobs are run, as far as that is known."""
        ...

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        ...

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        ...

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        """What was measured on the attempts of a job, or of one task, by task and attempt.

        Those that run stand as they were last written. Where nothing was measured there is none.
        """
        ...

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measures of these jobs over all their attempts; where nothing was, there is none."""
        ...

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hours of all devices that begin in this time, by hour, node and device."""
        ...

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first moment and began before the second.

        By end and id; `after` continues behind one of them. A limit of 0 lists nothing.
        """
        ...

    def measures_of(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """What was measured on these attempts; where nothing was, there is none."""
        ...

    def answer(self, user: str, key: str) -> AnswerRow | None:
        """What was answered to a request before."""
        ...

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        ...

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        ...

    def identities(self) -> list[Identity]:
        """How nodes are known: the authority, tokens to join with and keys, by kind and id."""
        ...

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Records with their numbers, the newest first."""
        ...

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        ...

    def windows(self) -> list[Window]:
        """All reservations that people made, by number; those that are over as well."""
        ...

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        ...

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        ...

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        ...

    def promises(self) -> list[Reservation]:
        """The places and times that waiting jobs were promised, by the job's number."""
        ...

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user, None before all others."""
        ...

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time by week, by tenant and user, None before all others."""
        ...

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of those to come.

        The oldest that were kept are dropped with old events.
        """
        ...

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user, None before all others."""
        ...

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait, the oldest first."""
        ...

    def cursor(self, name: str) -> CursorRow | None:
        """How far somebody has read the history."""
        ...

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""
        ...

    def last_event(self) -> int:
        """The largest sequence number so far; 0 if there is no history."""
        ...

    def next_number(self) -> int:
        """The number of the next job; no number is ever given twice."""
        ...

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then out of the way, the oldest end first; says how many.

        They are listed only on request, and name no environment any more; all else about them can
        be read as before. At most `limit` at a time, so that nobody waits for long.
        """
        ...

    def forget(
        self,
        *,
        answers_before_ms: int,
        events_before_ms: int,
        environments_before_ms: int = 0,
        hours_before_ms: int = 0,
        audit_before_ms: int = 0,
        limit: int = 10_000,
    ) -> int:
        """Drop old answers, events, hours of devices, records, and what nobody needs.

        Says how many.

        An environment is needed by jobs that have not ended, or not before then. A job that is
        retried later has to do with what it named itself.
        In steps of about `limit` rows of each. History goes from its beginning up to the first
        event that is not old; events of one batch may stay until all of them can go. Archived jobs
        are not kept jobs.
        """
        ...

    def trouble(self) -> str:
        """Why it cannot be asked at all now, as far as is known; empty if it can."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
