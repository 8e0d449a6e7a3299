"""The contract of every store: the queries, the reads and writes, and their guarantees.

The contract suite in `tests/contract` runs against each implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Identity, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    CursorRow,
    EstimateRow,
    EventRow,
    JobRow,
    NoticeRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

SORTS = frozenset(
    {"number", "priority", "submit_ms", "start_ms", "end_ms", "name", "user", "tenant", "state"}
)
"""The fields by which jobs can be sorted."""
MAX_INT = 2**63 - 1
EVERY_TASK = (-MAX_INT, MAX_INT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which entries of the audit log to list, the newest first; `before` is a cursor."""

    user: str = ""
    action: str = ""
    outcome: str = ""
    since_ms: int = 0
    before: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCount:
    """The jobs of one sweep in one state; `first` and `last` are job numbers."""

    name: str
    state: JobState
    jobs: int
    first: int
    last: int
    submit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVisibility:
    """Which jobs a user may list: their own, all of some tenants, and live jobs of other users.

    `within` limits own jobs to these tenants (None: no limit). Without `others`, jobs of other
    users are hidden even while they are live.
    """

    user: str
    within: frozenset[str] | None = None
    tenants: frozenset[str] = frozenset()
    others: bool = True

    def covers(self, user: str, tenant: str) -> bool:
        """Tell whether a job is visible even after its end."""
        own = user == self.user and (self.within is None or tenant in self.within)
        return own or tenant in self.tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list, and in what order.

    Empty `states` means all states. `name` is the whole name, `since_ms` the earliest submission.
    `ended_since_ms` and `ended_before_ms` select only ended jobs. `archived` includes archived
    jobs. `sort` is one of `SORTS`; missing values come first, and equal values are in order of job
    number, in both directions. `after_number` is a cursor: the page begins after that job; if the
    job does not exist and `sort` is not the number, the page is empty. `offset` then skips rows. A
    `limit` of 0 lists nothing. `visibility` hides the jobs that the user may not list.
    """

    states: tuple[JobState, ...] = ()
    tenant: str = ""
    user: str = ""
    name: str = ""
    numbers: IntervalSet | None = None
    since_ms: int | None = None
    ended_since_ms: int | None = None
    ended_before_ms: int | None = None
    sort: str = "number"
    descending: bool = False
    limit: int = 100
    offset: int = 0
    after_number: int | None = None
    archived: bool = False
    sweep: str = ""
    visibility: JobVisibility | None = None

    def __post_init__(self) -> None:
        """Reject an unknown sort field and negative numbers."""
        if self.sort not in SORTS:
            raise InvalidRequest(
                f"jobs cannot be sorted by '{self.sort}'; sort by one of {', '.join(sorted(SORTS))}"
            )
        if self.limit < 0 or self.offset < 0:
            raise InvalidRequest(
                f"limit is {self.limit} and offset {self.offset}; both must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """The times before which rows may be deleted; 0 keeps everything.

    `hours_ms` is for hourly readings of devices, `environments_ms` for the ends of the jobs that
    use an environment, `events_ms` also for estimates.
    """

    responses_ms: int = 0
    events_ms: int = 0
    environments_ms: int = 0
    hours_ms: int = 0
    audit_ms: int = 0


class Store(Protocol):
    """Writes are atomic: a whole batch is committed, or an error is raised and nothing is.

    Reads see only committed rows. Lists are in the order that each method states.
    """

    def commit(self, writes: list[Write]) -> int:
        """Write a batch, and return the sequence number of the last event so far.

        Events keep their order and get consecutive numbers, which end with the returned one. Of
        several rows with one key, the last counts. Writing an archived job restores it from the
        archive.
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

    def recently_ended(self, limit: int) -> list[JobRow]:
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

    def tasks(
        self, job_id: str, *, only: IntervalSet | None = None, limit: int = MAX_INT
    ) -> list[TaskRow]:
        """The tasks of an array that have started, by number.

        With `only`, no other task is read; so a few tasks of a very large array cost little.
        """
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

    def attempts(
        self,
        job_id: str,
        task: int | None = None,
        *,
        within: tuple[int, int] = EVERY_TASK,
        limit: int = MAX_INT,
    ) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt.

        Of an array, only tasks from the first to the last number in `within`.
        """
        ...

    def attempt_measures(
        self, job_id: str, task: int | None = None, *, within: tuple[int, int] = EVERY_TASK
    ) -> list[AttemptMeasure]:
        """The measurements of the attempts of a job, or of one task, by task and attempt.

        Running attempts have their latest measurement; attempts without one are missing.
        """
        ...

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these jobs over all attempts; jobs without any are missing."""
        ...

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hourly readings of all devices in this time, by hour, node and device."""
        ...

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first time and began before the second, by end and id.

        `after` is a cursor: the end and id of the last attempt seen. A limit of 0 lists nothing.
        """
        ...

    def measures_by_allocation(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these attempts; attempts without any are missing."""
        ...

    def response(self, user: str, key: str) -> ResponseRow | None:
        """The stored response to a request with this idempotency key."""
        ...

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        ...

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        ...

    def identities(self) -> list[Identity]:
        """The identities of nodes: the authority, join tokens and keys, by kind and id."""
        ...

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Entries of the audit log with their numbers, the newest first."""
        ...

    def pools(self) -> list[PoolQuota]:
        """All pools that have a quota, by name."""
        ...

    def advance_reservations(self) -> list[AdvanceReservation]:
        """All advance reservations by number, including past ones."""
        ...

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        ...

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        ...

    def allocations(self) -> list[Allocation]:
        """All allocations, by id."""
        ...

    def reservations(self) -> list[Reservation]:
        """The reservations of pending jobs, by job number."""
        ...

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user; None comes first."""
        ...

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time of the last week of each account, by tenant and user; None comes first."""
        ...

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of pending jobs."""
        ...

    def last_estimates(self, limit: int) -> list[EstimateRow]:
        """The estimates of the jobs that started last, the latest first."""
        ...

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user; None comes first."""
        ...

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait to be delivered, the oldest first."""
        ...

    def cursor(self, name: str) -> CursorRow | None:
        """The position of a reader in the history."""
        ...

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """Events with sequence numbers larger than `after`."""
        ...

    def last_event(self) -> int:
        """The largest sequence number so far; 0 without any event."""
        ...

    def next_number(self) -> int:
        """The number of the next job; no number is used twice."""
        ...

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then to the archive, the oldest first; returns how many.

        Archived jobs are listed only on request, and no longer keep an environment from being
        deleted. At most `limit` jobs at a time, so that other commits do not wait for long.
        """
        ...

    def delete_expired(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Delete rows that are older than the cut-offs; returns how many.

        An environment is deleted when every job that was captured with it is archived or ended
        before the cut-off. At most about `limit` rows of each table. Events are deleted from the
        oldest on, in whole batches, up to the first that is not old.
        """
        ...

    def unavailable_reason(self) -> str:
        """Why the store cannot be used now, as far as is known; empty if it can."""
        ...

    def full_reason(self) -> str:
        """Why only commands that end work should be committed, on a full disk; usually empty.

        The store has a reserve for such commands. It does not reject others itself.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...
