"""All reads of the SQL databases: builds statements, binds values, decodes rows.

A store supplies a dialect and three ways to run a statement. Queries come in, model values and rows
go out; `MemoryStore` must give the same result for the same query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.identity import Authority, Identity, NodeKey, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.codec import STATES, decode_events
from gpu_scheduler.store.interface import (
    EVERY_TASK,
    MAX_INT,
    AuditQuery,
    JobQuery,
    JobVisibility,
    SweepCount,
)
from gpu_scheduler.store.job_columns import decode_job, decode_launch, job_number
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    CursorRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    NoticeRow,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
)
from gpu_scheduler.store.sealing import NO_CIPHER, Cipher
from gpu_scheduler.store.sql_queries import Dialect
from gpu_scheduler.store.tables import TABLES, decode_measure

T = TypeVar("T")
Values = Mapping[str, Any]

NO_VALUES: Values = {}
MAX_INLINE_RANGES = 50
"""More ranges of job numbers than this are bound as one list instead of written into the SQL."""
_TABLES = ("jobs", "archived_jobs")

_NULLABLE = frozenset({"start_ms", "end_ms"})

SqlValues = dict[str, Any]

# A list of jobs. Live, ended and archived jobs are three parts; each is read in order along its own
# index and then merged, so the cost of a page depends on its rows, not on the size of the table.


def page_statement(dialect: Dialect, query: JobQuery, cursor_key: Any) -> tuple[str, SqlValues]:
    """Return the statement for one page, after the job with this sort key if there is a cursor."""
    values = _values(dialect, query)
    values |= {"limit": query.limit, "offset": query.offset}
    after_cursor = []
    if query.after_number is not None:
        values["after"] = query.after_number
        values["cursor_key"] = cursor_key
        after_cursor.append(_after_cursor(dialect, query, cursor_key))
    order = _order(query)
    parts = " UNION ALL ".join(
        dialect.query(
            "part", table=table, conditions=" AND ".join(conditions + after_cursor), order=order
        )
        for table, conditions in _parts(dialect, query)
    )
    return dialect.query("page", parts=parts, order=order), values


def has_stored_counts(query: JobQuery) -> bool:
    """Tell whether the table `job_counts` answers the query."""
    plain = not (query.name or query.sweep) and query.numbers is None and query.visibility is None
    times = (query.since_ms, query.ended_since_ms, query.ended_before_ms)
    return plain and all(time_ms is None for time_ms in times)


def _parts(dialect: Dialect, query: JobQuery) -> list[tuple[str, list[str]]]:
    """Return the tables to read, each with its index hint and conditions."""
    shared = _conditions(dialect, query)
    wanted = set(query.states or JobState)
    parts = []
    if wanted - ENDED:
        index, live = _live_index(query, wanted), ["ended = 0"]
        if index == "jobs_by_state":
            # The condition of the partial index, word for word, so that it is used.
            live.append("state <> 'pending'")
        if query.visibility is not None and not query.visibility.others:
            live.append(_covered(dialect, query.visibility))
        parts.append((f"jobs{_index_hint(dialect, query, index)}", live + shared))
    if wanted & ENDED:
        index = "jobs_by_end" if query.sort == "end_ms" else _owner_index(query)
        if query.visibility is not None:
            shared = [*shared, _covered(dialect, query.visibility)]
            if index == "jobs_by_number" and not query.visibility.tenants:
                index = "jobs_by_user"
        parts.append((f"jobs{_index_hint(dialect, query, index)}", ["ended = 1", *shared]))
        if query.archived:
            parts.append(("archived_jobs", ["ended = 1", *shared]))
    return parts


def _index_hint(dialect: Dialect, query: JobQuery, index: str) -> str:
    # A query for job numbers uses the primary key.
    return dialect.index_hint(index) if query.numbers is None else ""


def _live_index(query: JobQuery, wanted: set[JobState]) -> str:
    if JobState.PENDING not in wanted:
        return "jobs_by_state"
    if query.sort == "priority" and not query.user:
        return "jobs_by_priority"
    return _owner_index(query)


def _owner_index(query: JobQuery) -> str:
    return "jobs_by_user" if query.user else "jobs_by_number"


def _conditions(dialect: Dialect, query: JobQuery) -> list[str]:
    conditions = [
        condition
        for condition, is_set in (
            ("tenant = :tenant", query.tenant),
            ('"user" = :user', query.user),
            ("name = :name", query.name),
            ("submit_ms >= :since_ms", query.since_ms is not None),
            ("end_ms >= :ended_since_ms", query.ended_since_ms is not None),
            ("end_ms < :ended_before_ms", query.ended_before_ms is not None),
            (dialect.sql["in_sweep"], query.sweep),
        )
        if is_set
    ]
    if query.states:
        # Without an index: rows by state would not come in the order of the page.
        marks = ", ".join(f":state{place}" for place in range(len(query.states)))
        conditions.append(f"{dialect.unindexed('state')} IN ({marks})")
    if query.numbers is not None:
        conditions.append(_in_ranges(dialect, query.numbers))
    return conditions


def _covered(dialect: Dialect, visibility: JobVisibility) -> str:
    """Return the condition for jobs that are visible even after their end."""
    name = "visible_own" if visibility.within is None else "visible_own_within"
    own = dialect.sql[name]
    return f"({own} OR {dialect.sql['visible_tenants']})" if visibility.tenants else own


def _in_ranges(dialect: Dialect, numbers: IntervalSet) -> str:
    if not numbers:
        return "0 = 1"
    if len(numbers.ranges) <= MAX_INLINE_RANGES:
        inline = (f"number BETWEEN {low:d} AND {high:d}" for low, high in numbers.ranges)
        return f"({' OR '.join(inline)})"
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
    if query.visibility is not None:
        values["visible_to"] = query.visibility.user
        values["visible_within"] = dialect.list_value(query.visibility.within or ())
        values["visible_tenants"] = dialect.list_value(query.visibility.tenants)
    if query.numbers is not None and len(query.numbers.ranges) > MAX_INLINE_RANGES:
        values["ranges"] = dialect.ranges_value(query.numbers.ranges)
    return values


def _order(query: JobQuery) -> str:
    direction = "DESC" if query.descending else "ASC"
    if query.sort == "number":
        return f"number {direction}"
    nulls = f" NULLS {'LAST' if query.descending else 'FIRST'}" if query.sort in _NULLABLE else ""
    return f"{_column(query)} {direction}{nulls}, number"


def _after_cursor(dialect: Dialect, query: JobQuery, cursor_key: Any) -> str:
    """Return the condition for all rows after the cursor, in the order of `_order`."""
    key, operator = _column(query), "<" if query.descending else ">"
    if query.sort == "number":
        return f"number {operator} :after"
    tie = f"({key} {dialect.null_safe_equal} :cursor_key AND number > :after)"
    if cursor_key is None:
        return tie if query.descending else f"({tie} OR {key} IS NOT NULL)"
    further = f"{key} {operator} :cursor_key"
    if query.descending:
        further = f"{further} OR {key} IS NULL"
    return f"({further} OR {tie})"


def _column(query: JobQuery) -> str:
    """Return the column to sort by, quoted, because `user` is an SQL keyword."""
    return f'"{query.sort}"'


class SqlReader(ABC):
    """The reads of the contract `Store`; subclasses run the statements."""

    _dialect: Dialect
    cipher: Cipher = NO_CIPHER
    """Opens the secrets of rows."""

    @abstractmethod
    def _rows(
        self, decode: Callable[[Any], T], statement: str, values: Values = NO_VALUES
    ) -> list[T]:
        """Return all rows of a statement, decoded."""

    @abstractmethod
    def _row(self, statement: str, values: Values = NO_VALUES) -> Any:
        """Return the first row; None if there is none."""

    @abstractmethod
    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        """Return the result of `read` on the iterator of rows; it may stop before the last row."""

    def _query(self, decode: Callable[[Any], T], name: str, values: Values = NO_VALUES) -> list[T]:
        return self._rows(decode, self._dialect.query(name), values)

    def _read(self, kind: type, name: str, values: Values = NO_VALUES) -> list[Any]:
        """Return the rows of a query for all columns of the table of this row type."""
        return self._query(TABLES[kind].decode, name, values)

    def _measures(self, name: str, ids: Sequence[str]) -> dict[str, Measure]:
        """Return measurements by id; the query names the id and the columns of a `Measure`."""
        values = {"names": self._dialect.list_value(ids)}
        return dict(self._query(lambda row: (row[0], decode_measure(row[1:])), name, values))

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        for table in _TABLES:
            values = {"number": job_number(job_id), "job_id": job_id}
            rows = self._jobs(self._dialect.query("job", table=table), values)
            if rows:
                return rows[0]
        return None

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        return self._jobs(self._dialect.query("jobs"))

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        return self._jobs(self._dialect.query("live_jobs"))

    def recently_ended(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        return self._jobs(self._dialect.query("recently_ended"), {"limit": limit})

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        cursor_key = None
        if query.after_number is not None and query.sort != "number":
            number = {"number": query.after_number}
            found = self._row(self._dialect.query("sort_key", key=query.sort), number)
            if found is None:
                return []
            cursor_key = found[0]
        return self._jobs(*page_statement(self._dialect, query, cursor_key))

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        if has_stored_counts(query):
            counts = self._counts(query.user, query.tenant, archived=query.archived)
            return sum(counts.get(state, 0) for state in query.states or JobState)
        total, values = 0, _values(self._dialect, query)
        for table, conditions in _parts(self._dialect, query):
            joined = " AND ".join(conditions)
            statement = self._dialect.query("count_part", table=table, conditions=joined)
            total += self._row(statement, values)[0]
        return total

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        return self._counts(user, tenant, archived=False)

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user by name and state, archived jobs left out."""
        values = {
            "user": user,
            "within": None if within is None else self._dialect.list_value(within),
        }
        return [
            SweepCount(
                name=name,
                state=STATES[state],
                jobs=jobs,
                first=first,
                last=last,
                submit_ms=submit_ms,
            )
            for name, state, jobs, first, last, submit_ms in self._query(tuple, "sweeps", values)
        ]

    def _counts(self, user: str, tenant: str, *, archived: bool) -> dict[JobState, int]:
        values = {"user": user, "tenant": tenant, "archived": int(archived)}
        return dict(self._query(lambda row: (STATES[row[0]], row[1]), "counts", values))

    def _jobs(self, statement: str, values: Values = NO_VALUES) -> list[JobRow]:
        return self._rows(decode_job, statement, values)

    def tasks(
        self, job_id: str, *, only: IntervalSet | None = None, limit: int = MAX_INT
    ) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        ranges = ((-MAX_INT, MAX_INT),) if only is None else only.ranges
        values: SqlValues = {"job_id": job_id, "limit": limit}
        if len(ranges) > MAX_INLINE_RANGES:
            values["ranges"] = self._dialect.ranges_value(ranges)
            return self._read(TaskRow, "tasks_in_ranges", values)
        found: list[TaskRow] = []
        for low, high in ranges:
            values |= {"low": low, "high": high, "limit": limit - len(found)}
            found += self._read(TaskRow, "tasks", values)
            if len(found) >= limit:
                break
        return found

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        for table in _TABLES:
            values = {"number": job_number(job_id), "job_id": job_id}
            found = self._rows(decode_launch, self._dialect.query("launch", table=table), values)
            if found:
                return self.cipher.open_launch(found[0])
        return None

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """The launches of these jobs, where known; one query covers all ids of the usual form."""
        numbers = {
            number: job_id for job_id in job_ids if (number := job_number(job_id)) is not None
        }
        rows = self._query(
            lambda row: (numbers[row[0]], decode_launch(row[1:])),
            "launches",
            {"names": self._dialect.list_value(numbers)},
        )
        found = {job_id: self.cipher.open_launch(launch) for job_id, launch in rows}
        for job_id in job_ids:
            if job_id not in found and (launch := self.launch(job_id)) is not None:
                found[job_id] = launch
        return found

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        found = self._read(EnvironmentRow, "environment", {"name": name})
        return dict(self.cipher.open_pairs(found[0].variables)) if found else None

    def attempts(
        self,
        job_id: str,
        task: int | None = None,
        *,
        within: tuple[int, int] = EVERY_TASK,
        limit: int = MAX_INT,
    ) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        low, high = within
        values = {"job_id": job_id, "task": task, "low": low, "high": high, "limit": limit}
        return self._read(AttemptRow, "attempts", values)

    def attempt_measures(
        self, job_id: str, task: int | None = None, *, within: tuple[int, int] = EVERY_TASK
    ) -> list[AttemptMeasure]:
        """The measurements of the attempts of a job, or of one task, by task and attempt."""
        low, high = within
        values = {"job_id": job_id, "task": task, "low": low, "high": high}
        return self._read(AttemptMeasure, "attempt_measures", values)

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these jobs over all attempts; jobs without any are missing."""
        return self._measures("job_measures", job_ids)

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hourly readings of all devices in this time, by hour, node and device."""
        return self._read(
            DeviceHour,
            "device_hours",
            {"from_ms": from_ms, "before_ms": before_ms},
        )

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first time and began before the second, by end and id."""
        values = {
            "from_ms": max(from_ms + 1, after[0]),
            "before_ms": before_ms,
            "after_ms": after[0],
            "after_id": after[1],
            "limit": limit,
        }
        return self._read(AttemptRow, "attempts_between", values)

    def measures_by_allocation(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these attempts; attempts without any are missing."""
        return self._measures("measures_by_allocation", allocation_ids)

    def response(self, user: str, key: str) -> ResponseRow | None:
        """The stored response to a request with this idempotency key."""
        found = self._read(ResponseRow, "response", {"user": user, "key": key})
        return found[0] if found else None

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return self._read(Tenant, "tenants")

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return self._read(Token, "tokens")

    def identities(self) -> list[Identity]:
        """The identities of nodes: the authority, join tokens and keys, by kind and id."""
        return [
            replace(found, key=self.cipher.open(found.key))
            if isinstance(found, Authority)
            else found
            for found in self._read(NodeKey, "identities")
        ]

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Entries of the audit log with their numbers, the newest first."""
        values = {
            "user": query.user,
            "action": query.action,
            "outcome": query.outcome,
            "since_ms": query.since_ms,
            "before": MAX_INT if query.before is None else query.before,
            "limit": query.limit,
        }
        return self._read(AuditRow, "audit", values)

    def pools(self) -> list[PoolQuota]:
        """All pools that have a quota, by name."""
        return self._read(PoolQuota, "pools")

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        return [
            replace(found, launch=self.cipher.open_launch(found.launch))
            for found in self._read(Service, "services")
        ]

    def advance_reservations(self) -> list[AdvanceReservation]:
        """All advance reservations by number, including past ones."""
        return self._read(AdvanceReservation, "advance_reservations")

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return self._read(Node, "nodes")

    def allocations(self) -> list[Allocation]:
        """All allocations, by id."""
        return self._read(Allocation, "allocations")

    def reservations(self) -> list[Reservation]:
        """The reservations of pending jobs, by job number."""
        return self._read(ReservationRow, "reservations")

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user; None comes first."""
        return self._read(UsageRow, "usage")

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time of the last week of each account, by tenant and user; None comes first."""
        return self._read(WeekUsageRow, "week_usage")

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of pending jobs."""
        if started_since_ms is None:
            return self._read(EstimateRow, "open_estimates")
        return self._read(EstimateRow, "estimates", {"since_ms": started_since_ms})

    def last_estimates(self, limit: int) -> list[EstimateRow]:
        """The estimates of the jobs that started last, the latest first."""
        return self._read(EstimateRow, "last_estimates", {"limit": limit})

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user; None comes first."""
        return self._read(ShareRow, "shares")

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait to be delivered, the oldest first."""
        return self._read(NoticeRow, "notices")

    def cursor(self, name: str) -> CursorRow | None:
        """The position of a reader in the history."""
        found = self._read(CursorRow, "cursor", {"name": name})
        return found[0] if found else None

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """Events with sequence numbers larger than `after`."""

        def read(pieces: Iterator[tuple[Any, ...]]) -> list[tuple[int, EventRow]]:
            found: list[tuple[int, EventRow]] = []
            while len(found) < limit and (piece := next(pieces, None)) is not None:
                numbered = enumerate(decode_events(piece[1]), start=piece[0])
                found.extend(item for item in numbered if item[0] > after)
            return found[:limit]

        return self._scan(self._dialect.query("history"), {"after": after}, read)

    def last_event(self) -> int:
        """The largest sequence number so far; 0 without any event."""
        return int(self._row(self._dialect.query("last_event"))[0])

    def next_number(self) -> int:
        """The number of the next job; no number is used twice."""
        return int(self._row(self._dialect.query("next_number"))[0])
