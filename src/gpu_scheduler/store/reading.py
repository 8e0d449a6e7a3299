"""What every store in SQL reads, whatever the database: the questions, and what rows become.

Each store brings a dialect and three ways to run a statement; what a statement is called and what
its values are stands here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measures import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.node_key import Identity
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import JobState
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.model.token import Token
from gpu_scheduler.model.window import Window
from gpu_scheduler.store import making
from gpu_scheduler.store.codec import NODE, PROMISE, SERVICE, TENANT, WINDOW, decode_events
from gpu_scheduler.store.dialect import Dialect
from gpu_scheduler.store.finding import count_statements, is_counted, page_statement
from gpu_scheduler.store.identities import identity_of
from gpu_scheduler.store.job_reader import job_row
from gpu_scheduler.store.job_values import number_in
from gpu_scheduler.store.questions import AuditQuery, JobQuery, SweepCount
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
)

T = TypeVar("T")
Values = Mapping[str, Any]

NOTHING: Values = {}
LARGEST = 2**63 - 1
_TABLES = ("jobs", "archived_jobs")


class SqlReads(ABC):
    """All that can be asked of a database."""

    _dialect: Dialect

    @abstractmethod
    def _rows(self, make: Callable[[Any], T], statement: str, values: Values = NOTHING) -> list[T]:
        """All rows of a statement, made into something."""

    @abstractmethod
    def _row(self, statement: str, values: Values = NOTHING) -> Any:
        """The first row; None if there is none."""

    @abstractmethod
    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        """What `read` makes of rows that come one after the other; it may not need all of them."""

    # --- jobs

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        for table in _TABLES:
            values = {"number": number_in(job_id), "job_id": job_id}
            rows = self._jobs(self._dialect.reading("job", table=table), values)
            if rows:
                return rows[0]
        return None

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        return self._jobs(self._dialect.reading("jobs"))

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        return self._jobs(self._dialect.reading("live_jobs"))

    def recent_ends(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        return self._jobs(self._dialect.reading("recent_ends"), {"limit": limit})

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        mark = None
        if query.after_number is not None and query.sort != "number":
            number = {"number": query.after_number}
            found = self._row(self._dialect.reading("sort_key", key=query.sort), number)
            if found is None:
                return []
            mark = found[0]
        return self._jobs(*page_statement(self._dialect, query, mark))

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        if is_counted(query):
            counts = self._counts(query.user, query.tenant, archived=query.archived)
            return sum(counts.get(state, 0) for state in query.states or JobState)
        return sum(self._row(*counting)[0] for counting in count_statements(self._dialect, query))

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        return self._counts(user, tenant, archived=False)

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user: how many of their jobs are in each state."""
        values = {"user": user, "within": None if within is None else self._dialect.listed(within)}
        return self._rows(making.sweep_count, self._dialect.reading("sweeps"), values)

    def _counts(self, user: str, tenant: str, *, archived: bool) -> dict[JobState, int]:
        values = {"user": user, "tenant": tenant, "archived": int(archived)}
        return dict(self._rows(making.state_count, self._dialect.reading("counts"), values))

    def _jobs(self, statement: str, values: Values = NOTHING) -> list[JobRow]:
        return self._rows(job_row, statement, values)

    # --- what belongs to a job

    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        low, high = -LARGEST, LARGEST
        if only is not None:
            if not only:
                return []
            low, high = only.first, only.ranges[-1][1]
        values = {"job_id": job_id, "low": low, "high": high}
        rows = self._rows(making.task_row, self._dialect.reading("tasks"), values)
        return [row for row in rows if only is None or row.task in only]

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        for table in _TABLES:
            values = {"number": number_in(job_id), "job_id": job_id}
            found = self._rows(making.launch, self._dialect.reading("launch", table=table), values)
            if found:
                return found[0]
        return None

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """How these jobs are run, as far as that is known; at the price of one look for most."""
        numbers = {
            number: job_id for job_id in job_ids if (number := number_in(job_id)) is not None
        }
        rows = self._rows(
            lambda row: (numbers[row[0]], making.launch(row[1:])),
            self._dialect.reading("launches"),
            {"names": self._dialect.listed(numbers)},
        )
        found = dict(rows)
        for job_id in job_ids:
            if job_id not in found and (launch := self.launch(job_id)) is not None:
                found[job_id] = launch
        return found

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        found = self._rows(making.variables, self._dialect.reading("environment"), {"name": name})
        return found[0] if found else None

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        return self._rows(
            making.attempt_row, self._dialect.reading("attempts"), {"job_id": job_id, "task": task}
        )

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        """What was measured on the attempts of a job, or of one task, by task and attempt."""
        values = {"job_id": job_id, "task": task}
        return self._rows(making.attempt_measure, self._dialect.reading("attempt_measures"), values)

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measures of these jobs over all their attempts."""
        values = {"names": self._dialect.listed(job_ids)}
        return dict(self._rows(making.job_measure, self._dialect.reading("job_measures"), values))

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hours of all devices that begin in this time, by hour, node and device."""
        return self._rows(
            making.device_hour,
            self._dialect.reading("device_hours"),
            {"from_ms": from_ms, "before_ms": before_ms},
        )

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first moment and began before the second."""
        values = {
            "from_ms": max(from_ms + 1, after[0]),
            "before_ms": before_ms,
            "after_ms": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        return self._rows(making.attempt_row, self._dialect.reading("attempts_between"), values)

    def measures_of(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """What was measured on these attempts; where nothing was, there is none."""
        values = {"names": self._dialect.listed(allocation_ids)}
        return dict(self._rows(making.job_measure, self._dialect.reading("measures_of"), values))

    def answer(self, user: str, key: str) -> AnswerRow | None:
        """What was answered to a request before."""
        found = self._rows(
            making.answer_row, self._dialect.reading("answer"), {"user": user, "key": key}
        )
        return found[0] if found else None

    # --- the cluster

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return self._rows(lambda row: TENANT.decode(row[0]), self._dialect.reading("tenants"))

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return self._rows(making.token, self._dialect.reading("tokens"))

    def identities(self) -> list[Identity]:
        """How nodes are known, by kind and id."""
        return self._rows(identity_of, self._dialect.reading("identities"))

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Records with their numbers, the newest first."""
        values = {
            "user": query.user,
            "action": query.action,
            "outcome": query.outcome,
            "since_ms": query.since_ms,
            "before": LARGEST if query.before is None else query.before,
            "limit": query.limit,
        }
        return self._rows(making.audit_row, self._dialect.reading("audit"), values)

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        return self._rows(making.pool, self._dialect.reading("pools"))

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        return self._rows(lambda row: SERVICE.decode(row[0]), self._dialect.reading("services"))

    def windows(self) -> list[Window]:
        """All reservations that people made, by number; those that are over as well."""
        return self._rows(lambda row: WINDOW.decode(row[0]), self._dialect.reading("windows"))

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return self._rows(lambda row: NODE.decode(row[0]), self._dialect.reading("nodes"))

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        return self._rows(making.allocation, self._dialect.reading("allocations"))

    def promises(self) -> list[Reservation]:
        """The places and times that waiting jobs were promised, by the job's number."""
        return self._rows(lambda row: PROMISE.decode(row[0]), self._dialect.reading("promises"))

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user, None before all others."""
        return self._rows(making.usage_row, self._dialect.reading("usage"))

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time by week, by tenant and user, None before all others."""
        return self._rows(lambda row: WeekUsageRow(*row), self._dialect.reading("week_usage"))

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of those to come."""
        if started_since_ms is None:
            return self._rows(making.estimate, self._dialect.reading("estimates_to_come"))
        return self._rows(
            making.estimate, self._dialect.reading("estimates"), {"since_ms": started_since_ms}
        )

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user, None before all others."""
        return self._rows(lambda row: ShareRow(*row), self._dialect.reading("shares"))

    # --- history

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait, the oldest first."""
        return self._rows(making.notice_row, self._dialect.reading("notices"))

    def cursor(self, name: str) -> CursorRow | None:
        """How far somebody has read the history."""
        found = self._rows(
            lambda row: CursorRow(*row), self._dialect.reading("cursor"), {"name": name}
        )
        return found[0] if found else None

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""

        def read(pieces: Iterator[tuple[Any, ...]]) -> list[tuple[int, EventRow]]:
            found: list[tuple[int, EventRow]] = []
            while len(found) < limit and (piece := next(pieces, None)) is not None:
                numbered = enumerate(decode_events(piece[1]), start=piece[0])
                found.extend(item for item in numbered if item[0] > after)
            return found[:limit]

        return self._scan(self._dialect.reading("history"), {"after": after}, read)

    def last_event(self) -> int:
        """The largest sequence number so far; 0 if there is no history."""
        return int(self._row(self._dialect.reading("last_event"))[0])

    def next_number(self) -> int:
        """The number of the next job; no number is ever given twice."""
        return int(self._row(self._dialect.reading("next_number"))[0])
