"""The contract that every store keeps: what is written and read, and what must be true of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Identity, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    CursorRow,
    EstimateRow,
    EventRow,
    JobRow,
    NoticeRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

# --- What a store can be asked for: which jobs, what somebody may see of them, and what is old.

SORTS = frozenset(
    {"number", "priority", "submit_ms", "start_ms", "end_ms", "name", "user", "tenant", "state"}
)
"""By what jobs can be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which records to list, the newest first; `before` continues behind that number."""

    user: str = ""
    action: str = ""
    outcome: str = ""
    since_ms: int = 0
    before: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCount:
    """The jobs of one sweep that are in one state; `first` and `last` are numbers of jobs."""

    name: str
    state: JobState
    jobs: int
    first: int
    last: int
    submit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Which jobs somebody gets to see: their own, those of some tenants, and of others what lives.

    `within` are the tenants in which own jobs count (None: in all). Without `others`, jobs of
    others are left out even while they live.
    """

    user: str
    within: frozenset[str] | None = None
    tenants: frozenset[str] = frozenset()
    others: bool = True

    def covers(self, user: str, tenant: str) -> bool:
        """Tell whether a job is one of those that are seen whether they live or not."""
        own = user == self.user and (self.within is None or tenant in self.within)
        return own or tenant in self.tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list, and in what order.

    An empty `states` means all, `name` is the whole name, `since_ms` the earliest submission,
    `ended_since_ms` and `ended_before_ms` are about the end, which others than ended jobs have not;
    `sweep` is the sweep that jobs belong to;
    `archived` adds jobs that were archived. `sort` is one of `SORTS`; what is missing comes before
    everything else, and ties go by rising number in both directions. `after_number` continues
    behind that job in the chosen order (a cursor; when sorted by anything but number and the job is
    not there, nothing follows), `offset` then counts rows. A `limit` of 0 lists nothing. With
    `sight`, only what that one sees is there.
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
    sight: Sight | None = None

    def __post_init__(self) -> None:
        """Refuse an order that does not exist."""
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
    """What was before these moments may be dropped; at 0 nothing is too old.

    `hours_ms` is about hourly readings of devices. Environments go by the ends of their jobs, and
    estimates with the events.
    """

    answers_ms: int = 0
    events_ms: int = 0
    environments_ms: int = 0
    hours_ms: int = 0
    audit_ms: int = 0


# --- The contract that every store keeps: what is written and read, and what must be true of it.


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

    def windows(self) -> list[AdvanceReservation]:
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

    def forget(self, before: Cutoffs, *, limit: int = 10_000) -> int:
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
