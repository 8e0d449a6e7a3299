"""What every store in SQL reads, whatever the database: the questions, and what rows become.

Each store brings a dialect and three ways to run a statement; what a statement is called and what
its values are stands here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpu_scheduler.model.identity import Identity, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store import row_reader
from gpu_scheduler.store.codec import (
    NODE,
    PROMISE,
    SERVICE,
    TENANT,
    WINDOW,
    decode_events,
    identity_of,
)
from gpu_scheduler.store.contract import AuditQuery, JobQuery, Sight, SweepCount
from gpu_scheduler.store.job_values import number_in
from gpu_scheduler.store.row_reader import job_row
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
from gpu_scheduler.store.sql_files import Dialect

# --- The SQL for a list of jobs.
#
# A query comes in; a statement and its values go out. Jobs that live, jobs that have ended and
# archived jobs are three parts, each read in order along an index of its own and merged, so that a
# page costs as much as its rows and not as much as the table.

MOST_RANGES = 50
"""More ranges of numbers than this are looked up in a list instead of being spelled out."""

_NULLABLE = frozenset({"start_ms", "end_ms"})

SqlValues = dict[str, Any]


def page_statement(dialect: Dialect, query: JobQuery, mark: Any) -> tuple[str, SqlValues]:
    """The statement for one page; `mark` is the sort key of the job that it begins behind."""
    values = _values(dialect, query)
    values |= {"limit": query.limit, "offset": query.offset}
    behind = []
    if query.after_number is not None:
        values["after"] = query.after_number
        values["mark"] = mark
        behind.append(_behind(dialect, query, mark))
    order = _order(query)
    parts = " UNION ALL ".join(
        dialect.reading(
            "part", table=table, conditions=" AND ".join(conditions + behind), order=order
        )
        for table, conditions in _parts(dialect, query)
    )
    return dialect.reading("page", parts=parts, order=order), values


def count_statements(dialect: Dialect, query: JobQuery) -> Iterator[tuple[str, SqlValues]]:
    """Statements whose counts make up the whole."""
    for table, conditions in _parts(dialect, query):
        together = " AND ".join(conditions)
        yield (
            dialect.reading("count_part", table=table, conditions=together),
            _values(dialect, query),
        )


def is_counted(query: JobQuery) -> bool:
    """Tell whether the kept counts answer the query."""
    plain = not (query.name or query.sweep) and query.numbers is None and query.sight is None
    times = (query.since_ms, query.ended_since_ms, query.ended_before_ms)
    return plain and all(time_ms is None for time_ms in times)


def _parts(dialect: Dialect, query: JobQuery) -> list[tuple[str, list[str]]]:
    """Tables (with the index to read along), and the conditions there."""
    shared = _conditions(dialect, query)
    wanted = set(query.states or JobState)
    parts = []
    if wanted - ENDED:
        index, live = _live_index(query, wanted), ["ended = 0"]
        if index == "jobs_by_state":
            # Said in these words, as the index is.
            live.append("state <> 'pending'")
        if query.sight is not None and not query.sight.others:
            live.append(_covered(dialect, query.sight))
        parts.append((f"jobs{_along(dialect, query, index)}", live + shared))
    if wanted & ENDED:
        index = "jobs_by_end" if query.sort == "end_ms" else _index_of_owner(query)
        if query.sight is not None:
            shared = [*shared, _covered(dialect, query.sight)]
            if index == "jobs_by_number" and not query.sight.tenants:
                index = "jobs_by_user"
        parts.append((f"jobs{_along(dialect, query, index)}", ["ended = 1", *shared]))
        if query.archived:
            parts.append(("archived_jobs", ["ended = 1", *shared]))
    return parts


def _along(dialect: Dialect, query: JobQuery, index: str) -> str:
    """Numbers lead to their rows by themselves."""
    return dialect.along(index) if query.numbers is None else ""


def _live_index(query: JobQuery, wanted: set[JobState]) -> str:
    if JobState.PENDING not in wanted:
        return "jobs_by_state"
    if query.sort == "priority" and not query.user:
        return "jobs_by_priority"
    return _index_of_owner(query)


def _index_of_owner(query: JobQuery) -> str:
    return "jobs_by_user" if query.user else "jobs_by_number"


def _conditions(dialect: Dialect, query: JobQuery) -> list[str]:
    conditions = [
        condition
        for condition, asked in (
            ("tenant = :tenant", query.tenant),
            ('"user" = :user', query.user),
            ("name = :name", query.name),
            ("submit_ms >= :since_ms", query.since_ms is not None),
            ("end_ms >= :ended_since_ms", query.ended_since_ms is not None),
            ("end_ms < :ended_before_ms", query.ended_before_ms is not None),
            (dialect.sql["in_sweep"], query.sweep),
        )
        if asked
    ]
    if query.states:
        # No index, or the states would be read one after the other, which is out of order.
        marks = ", ".join(f":state{place}" for place in range(len(query.states)))
        conditions.append(f"{dialect.unindexed('state')} IN ({marks})")
    if query.numbers is not None:
        conditions.append(_in_ranges(dialect, query.numbers))
    return conditions


def _covered(dialect: Dialect, sight: Sight) -> str:
    """The condition for jobs that are seen whether they live or not."""
    own = dialect.sql["seen_own"] if sight.within is None else dialect.sql["seen_own_within"]
    return f"({own} OR {dialect.sql['seen_tenants']})" if sight.tenants else own


def _in_ranges(dialect: Dialect, numbers: IntervalSet) -> str:
    if not numbers:
        return "0 = 1"
    if len(numbers.ranges) <= MOST_RANGES:
        spelled = (f"number BETWEEN {low:d} AND {high:d}" for low, high in numbers.ranges)
        return f"({' OR '.join(spelled)})"
    first, last = numbers.first, numbers.ranges[-1][1]
    return f"number BETWEEN {first:d} AND {last:d} AND {dialect.sql['in_ranges']}"


def _values(dialect: Dialect, query: JobQuery) -> SqlValues:
    values: SqlValues = {
        "tenant": query.tenant,
        "user": query.user,
        "name": query.name,
        "since_ms": query.since_ms,
        "ended_since_ms": query.ended_since_ms,
        "ended_before_ms": query.ended_before_ms,
        "sweep": query.sweep,
    }
    values |= {f"state{place}": state.value for place, state in enumerate(query.states)}
    if query.sight is not None:
        values["seen_by"] = query.sight.user
        values["seen_within"] = dialect.listed(query.sight.within or ())
        values["seen_tenants"] = dialect.listed(query.sight.tenants)
    if query.numbers is not None and len(query.numbers.ranges) > MOST_RANGES:
        values["ranges"] = dialect.ranges(query.numbers.ranges)
    return values


def _order(query: JobQuery) -> str:
    direction = "DESC" if query.descending else "ASC"
    if query.sort == "number":
        return f"number {direction}"
    nulls = f" NULLS {'LAST' if query.descending else 'FIRST'}" if query.sort in _NULLABLE else ""
    return f"{_column(query)} {direction}{nulls}, number"


def _behind(dialect: Dialect, query: JobQuery, mark: Any) -> str:
    """The condition for all rows behind the mark, in the order of `_order`."""
    key, less_or_more = _column(query), "<" if query.descending else ">"
    if query.sort == "number":
        return f"number {less_or_more} :after"
    tie = f"({key} {dialect.same} :mark AND number > :after)"
    if mark is None:
        return tie if query.descending else f"({tie} OR {key} IS NOT NULL)"
    further = f"{key} {less_or_more} :mark"
    if query.descending:
        further = f"{further} OR {key} IS NULL"
    return f"({further} OR {tie})"


def _column(query: JobQuery) -> str:
    """The column to sort by, quoted, as `user` is a word of SQL."""
    return f'"{query.sort}"'


# --- What every store in SQL reads, whatever the database: the questions, and what rows become.

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
        return self._rows(row_reader.sweep_count, self._dialect.reading("sweeps"), values)

    def _counts(self, user: str, tenant: str, *, archived: bool) -> dict[JobState, int]:
        values = {"user": user, "tenant": tenant, "archived": int(archived)}
        return dict(self._rows(row_reader.state_count, self._dialect.reading("counts"), values))

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
        rows = self._rows(row_reader.task_row, self._dialect.reading("tasks"), values)
        return [row for row in rows if only is None or row.task in only]

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        for table in _TABLES:
            values = {"number": number_in(job_id), "job_id": job_id}
            found = self._rows(
                row_reader.launch, self._dialect.reading("launch", table=table), values
            )
            if found:
                return found[0]
        return None

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """How these jobs are run, as far as that is known; at the price of one look for most."""
        numbers = {
            number: job_id for job_id in job_ids if (number := number_in(job_id)) is not None
        }
        rows = self._rows(
            lambda row: (numbers[row[0]], row_reader.launch(row[1:])),
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
        found = self._rows(
            row_reader.variables, self._dialect.reading("environment"), {"name": name}
        )
        return found[0] if found else None

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        return self._rows(
            row_reader.attempt_row,
            self._dialect.reading("attempts"),
            {"job_id": job_id, "task": task},
        )

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        """What was measured on the attempts of a job, or of one task, by task and attempt."""
        values = {"job_id": job_id, "task": task}
        return self._rows(
            row_reader.attempt_measure, self._dialect.reading("attempt_measures"), values
        )

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measures of these jobs over all their attempts."""
        values = {"names": self._dialect.listed(job_ids)}
        return dict(
            self._rows(row_reader.job_measure, self._dialect.reading("job_measures"), values)
        )

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hours of all devices that begin in this time, by hour, node and device."""
        return self._rows(
            row_reader.device_hour,
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
        return self._rows(row_reader.attempt_row, self._dialect.reading("attempts_between"), values)

    def measures_of(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """What was measured on these attempts; where nothing was, there is none."""
        values = {"names": self._dialect.listed(allocation_ids)}
        return dict(
            self._rows(row_reader.job_measure, self._dialect.reading("measures_of"), values)
        )

    def answer(self, user: str, key: str) -> AnswerRow | None:
        """What was answered to a request before."""
        found = self._rows(
            row_reader.answer_row, self._dialect.reading("answer"), {"user": user, "key": key}
        )
        return found[0] if found else None

    # --- the cluster

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return self._rows(lambda row: TENANT.decode(row[0]), self._dialect.reading("tenants"))

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return self._rows(row_reader.token, self._dialect.reading("tokens"))

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
        return self._rows(row_reader.audit_row, self._dialect.reading("audit"), values)

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        return self._rows(row_reader.pool, self._dialect.reading("pools"))

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        return self._rows(lambda row: SERVICE.decode(row[0]), self._dialect.reading("services"))

    def windows(self) -> list[AdvanceReservation]:
        """All reservations that people made, by number; those that are over as well."""
        return self._rows(lambda row: WINDOW.decode(row[0]), self._dialect.reading("windows"))

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return self._rows(lambda row: NODE.decode(row[0]), self._dialect.reading("nodes"))

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        return self._rows(row_reader.allocation, self._dialect.reading("allocations"))

    def promises(self) -> list[Reservation]:
        """The places and times that waiting jobs were promised, by the job's number."""
        return self._rows(lambda row: PROMISE.decode(row[0]), self._dialect.reading("promises"))

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user, None before all others."""
        return self._rows(row_reader.usage_row, self._dialect.reading("usage"))

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time by week, by tenant and user, None before all others."""
        return self._rows(lambda row: WeekUsageRow(*row), self._dialect.reading("week_usage"))

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of those to come."""
        if started_since_ms is None:
            return self._rows(row_reader.estimate, self._dialect.reading("estimates_to_come"))
        return self._rows(
            row_reader.estimate, self._dialect.reading("estimates"), {"since_ms": started_since_ms}
        )

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user, None before all others."""
        return self._rows(lambda row: ShareRow(*row), self._dialect.reading("shares"))

    # --- history

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait, the oldest first."""
        return self._rows(row_reader.notice_row, self._dialect.reading("notices"))

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
