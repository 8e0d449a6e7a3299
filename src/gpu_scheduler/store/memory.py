"""The store in memory, for simulations and tests: it is empty at every start.

Rows are in dictionaries by key. A batch is checked before it is written, so that it is atomic. A
query must give the same rows in the same order as the SQL databases do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.identity import Authority, Identity, JoinToken, NodeKey, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.codec import identity_key
from gpu_scheduler.store.interface import (
    EVERY_TASK,
    MAX_INT,
    AuditQuery,
    Cutoffs,
    JobQuery,
    JobVisibility,
    SweepCount,
)
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    CursorRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    LaunchRow,
    NewJobs,
    NoticeRow,
    Removed,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

T = TypeVar("T")


def matching_jobs(rows: Iterable[JobRow], query: JobQuery) -> list[JobRow]:
    """Return all rows that match the query, on all pages, by number."""
    found = [row for row in rows if _matches(row, query)]
    found.sort(key=_number)
    return found


_number = attrgetter("job.number")


def _is_of(number: int | None, task: int | None, within: tuple[int, int]) -> bool:
    """Whether an attempt is of the task, if one is given, and of tasks in a range."""
    return (task is None or number == task) and (number is None or within[0] <= number <= within[1])


def _task_and_attempt(row: AttemptRow | AttemptMeasure) -> tuple[bool, int, int]:
    return row.task is not None, row.task or 0, row.attempt


def page(rows: Iterable[JobRow], query: JobQuery, cursor: JobRow | None) -> list[JobRow]:
    """Return one page of the query; `cursor` is the job before the page."""
    found = matching_jobs(rows, query)
    if query.after_number is not None:
        found = [row for row in found if _follows(row, cursor, query)]
    # The sort is stable: rows with equal keys stay in order of number, also when reversed.
    found.sort(key=_KEYS[query.sort], reverse=query.descending)
    return found[query.offset : query.offset + query.limit]


def _matches(row: JobRow, query: JobQuery) -> bool:
    job = row.job
    return (
        (not query.states or row.state in query.states)
        and (not query.tenant or job.tenant == query.tenant)
        and (not query.user or job.user == query.user)
        and (not query.name or job.name == query.name)
        and (query.since_ms is None or job.submit_ms >= query.since_ms)
        and _ended_within(row, query)
        and (query.numbers is None or job.number in query.numbers)
        and (query.visibility is None or _is_visible(row, query.visibility))
    )


def _ended_within(row: JobRow, query: JobQuery) -> bool:
    since_ms, before_ms = query.ended_since_ms, query.ended_before_ms
    if since_ms is None and before_ms is None:
        return True
    end_ms = row.end_ms
    if end_ms is None:
        return False
    return (since_ms is None or end_ms >= since_ms) and (before_ms is None or end_ms < before_ms)


def _is_visible(row: JobRow, visibility: JobVisibility) -> bool:
    is_live_of_others = visibility.others and row.state not in ENDED
    return is_live_of_others or visibility.covers(row.job.user, row.job.tenant)


def _follows(row: JobRow, cursor: JobRow | None, query: JobQuery) -> bool:
    key: Any = row.job.number
    cursor_key: Any = query.after_number
    if query.sort != "number":
        if cursor is None:
            return False
        key, cursor_key = _KEYS[query.sort](row), _KEYS[query.sort](cursor)
        if key == cursor_key:
            return row.job.number > cursor.job.number
    return bool(key < cursor_key if query.descending else key > cursor_key)


def _time(name: str) -> Callable[[JobRow], tuple[bool, int]]:
    """Return a sort key; rows without a time come first."""

    def key(row: JobRow) -> tuple[bool, int]:
        value = getattr(row, name)
        return (value is not None, value or 0)

    return key


_KEYS: dict[str, Callable[[JobRow], Any]] = {
    "number": _number,
    "priority": attrgetter("job.priority"),
    "submit_ms": attrgetter("job.submit_ms"),
    "start_ms": _time("start_ms"),
    "end_ms": _time("end_ms"),
    "name": attrgetter("job.name"),
    "user": attrgetter("job.user"),
    "tenant": attrgetter("job.tenant"),
    "state": lambda row: row.state.value,
}


_ROW_KEYS: dict[type, Callable[[Any], Any]] = {
    EnvironmentRow: attrgetter("name"),
    DeviceHour: attrgetter("hour_ms", "node_id", "index"),
    UsageRow: attrgetter("period_ms", "tenant", "user"),
    ShareRow: attrgetter("tenant", "user"),
    WeekUsageRow: attrgetter("tenant", "user"),
    ResponseRow: attrgetter("user", "key"),
    CursorRow: attrgetter("name"),
    PoolQuota: attrgetter("pool"),
    **dict.fromkeys((Authority, JoinToken, NodeKey), identity_key),
    **dict.fromkeys(
        (
            *(Token, NoticeRow, Allocation, ReservationRow, EstimateRow),
            *(Node, Tenant, Service, AdvanceReservation),
        ),
        attrgetter("id"),
    ),
}
"""The key of each row type that is stored as it is: a row replaces the one with the same key."""


def _put(rows: dict[Any, Any], key: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a function that writes a row under its key."""

    def put(row: Any) -> None:
        rows[key(row)] = row

    return put


class MemoryStore:
    """Rows in dictionaries. Without `keep_ended`, ended jobs and history are not stored."""

    def __init__(self, *, keep_ended: bool = True) -> None:
        """Start empty."""
        self._keep_ended = keep_ended
        self._rows: dict[type, dict[Any, Any]] = {kind: {} for kind in _ROW_KEYS}
        self._jobs: dict[str, JobRow] = {}
        self._archived: dict[str, JobRow] = {}
        self._tasks: dict[str, dict[int, TaskRow]] = {}
        self._launches: dict[str, Launch] = {}
        self._attempts: dict[str, dict[str, AttemptRow]] = {}
        self._measures: dict[str, dict[str, AttemptMeasure]] = {}
        self._audit: list[tuple[int, AuditRow]] = []
        self._last_audit = 0
        self._events: list[EventRow] = []
        self._last_event = 0
        self._next_number = 1
        self._writers: dict[type, Callable[[Any], object]] = {
            **{kind: _put(self._rows[kind], key) for kind, key in _ROW_KEYS.items()},
            Removed: lambda removed: self._rows[removed.kind].pop(removed.id, None),
            JobRow: self._write_job,
            TaskRow: self._write_task,
            LaunchRow: self._write_launch,
            NewJobs: self._write_new,
            AttemptRow: self._write_attempt,
            AttemptMeasure: self._write_measure,
            AuditRow: self._write_audit,
            EventRow: self._write_event,
        }

    def commit(self, writes: list[Write]) -> int:
        """Write a batch; an invalid row is rejected before anything is written."""
        writers = self._writers
        launched = []
        for write in writes:
            if type(write) not in writers:
                raise InternalError(
                    f"the store has no table for rows of type {type(write).__name__}"
                )
            if isinstance(write, LaunchRow):
                launched.append(write.job_id)
        if launched:
            new = {write.job.id for write in writes if isinstance(write, JobRow)}
            for write in writes:
                if isinstance(write, NewJobs):
                    new.update(job.id for job in write.jobs)
            for job_id in launched:
                if job_id not in new and self.job(job_id) is None:
                    raise InternalError(f"the launch of job {job_id} came before the job itself")
        for write in writes:
            writers[type(write)](write)
        return self._last_event

    def _write_job(self, row: JobRow) -> None:
        job = row.job
        if job.number >= self._next_number:
            self._next_number = job.number + 1
        if self._keep_ended:
            self._archived.pop(job.id, None)
            self._jobs[job.id] = row
        elif row.state in ENDED:
            for rows in (self._jobs, self._tasks, self._launches):
                rows.pop(job.id, None)
        else:
            self._jobs[job.id] = row

    def _write_task(self, row: TaskRow) -> None:
        self._tasks.setdefault(row.job_id, {})[row.task] = row

    def _write_launch(self, row: LaunchRow) -> None:
        self._launches[row.job_id] = row.launch

    def _write_new(self, new: NewJobs) -> None:
        for row in new.rows():
            self._writers[type(row)](row)
        for event in new.events():
            self._write_event(event)

    def _write_attempt(self, row: AttemptRow) -> None:
        if self._keep_ended:
            self._attempts.setdefault(row.job_id, {})[row.allocation_id] = row

    def _write_measure(self, row: AttemptMeasure) -> None:
        if self._keep_ended:
            self._measures.setdefault(row.job_id, {})[row.allocation_id] = row

    def _write_audit(self, row: AuditRow) -> None:
        self._last_audit += 1
        if self._keep_ended:
            self._audit.append((self._last_audit, row))

    def _write_event(self, row: EventRow) -> None:
        self._last_event += 1
        if self._keep_ended:
            self._events.append(row)

    def _all(self, kind: type[T]) -> Iterable[T]:
        """Return all rows of a type that is stored as it is."""
        return self._rows[kind].values()

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        return self._jobs.get(job_id) or self._archived.get(job_id)

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        return sorted(self._jobs.values(), key=_number)

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        return [row for row in self.jobs() if row.state not in ENDED]

    def recently_ended(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        ended = [row for row in self._jobs.values() if _ended_at(row) is not None]
        ended.sort(key=lambda row: (row.end_ms, row.job.number), reverse=True)
        return ended[:limit]

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        every = self._job_rows(archived=True)
        cursor = next((row for row in every if row.job.number == query.after_number), None)
        return page(self._in_sweep(query), query, cursor)

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        return len(matching_jobs(self._in_sweep(query), query))

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user by name and state, archived jobs left out."""
        found: dict[tuple[str, JobState], list[JobRow]] = {}
        for row in self._jobs.values():
            launch = self._launches.get(row.job.id)
            if within is not None and row.job.tenant not in within:
                continue
            if launch is not None and launch.sweep and row.job.user == user:
                found.setdefault((launch.sweep, row.state), []).append(row)
        return [
            SweepCount(
                name=name,
                state=state,
                jobs=len(rows),
                first=min(row.job.number for row in rows),
                last=max(row.job.number for row in rows),
                submit_ms=min(row.job.submit_ms for row in rows),
            )
            for (name, state), rows in sorted(found.items())
        ]

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        query = JobQuery(user=user, tenant=tenant)
        return dict(Counter(row.state for row in matching_jobs(self._jobs.values(), query)))

    def _in_sweep(self, query: JobQuery) -> list[JobRow]:
        """Return the jobs of the query's sweep, which their launches name; without one, all."""
        rows = self._job_rows(archived=query.archived)
        if not query.sweep:
            return rows
        return [
            row
            for row in rows
            if (launch := self._launches.get(row.job.id)) and launch.sweep == query.sweep
        ]

    def _job_rows(self, *, archived: bool) -> list[JobRow]:
        return [*self._jobs.values(), *(self._archived.values() if archived else ())]

    def tasks(
        self, job_id: str, *, only: IntervalSet | None = None, limit: int = MAX_INT
    ) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        rows = sorted(self._tasks.get(job_id, {}).values(), key=attrgetter("task"))
        return [row for row in rows if only is None or row.task in only][:limit]

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        return self._launches.get(job_id)

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """How these jobs are run, as far as that is known."""
        return {name: self._launches[name] for name in job_ids if name in self._launches}

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        row = self._rows[EnvironmentRow].get(name)
        return None if row is None else dict(row.variables)

    def attempts(
        self,
        job_id: str,
        task: int | None = None,
        *,
        within: tuple[int, int] = EVERY_TASK,
        limit: int = MAX_INT,
    ) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        rows = self._attempts.get(job_id, {}).values()
        chosen = (row for row in rows if _is_of(row.task, task, within))
        return sorted(chosen, key=_task_and_attempt)[:limit]

    def attempt_measures(
        self, job_id: str, task: int | None = None, *, within: tuple[int, int] = EVERY_TASK
    ) -> list[AttemptMeasure]:
        """The measurements of the attempts of a job, or of one task, by task and attempt."""
        rows = self._measures.get(job_id, {}).values()
        chosen = (row for row in rows if _is_of(row.task, task, within))
        return sorted(chosen, key=_task_and_attempt)

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these jobs over all attempts; jobs without any are missing."""
        found: dict[str, Measure] = {}
        for job_id in job_ids:
            for row in self._measures.get(job_id, {}).values():
                found[job_id] = found.get(job_id, Measure()).plus(row.measure)
        return found

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hourly readings of all devices in this time, by hour, node and device."""
        return [
            row
            for key, row in sorted(self._rows[DeviceHour].items())
            if from_ms <= key[0] < before_ms
        ]

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first time and began before the second, by end and id."""
        rows = [
            row
            for of_job in self._attempts.values()
            for row in of_job.values()
            if row.end_ms > from_ms
            and row.start_ms < before_ms
            and (row.end_ms, row.allocation_id) > after
        ]
        return sorted(rows, key=attrgetter("end_ms", "allocation_id"))[:limit]

    def measures_by_allocation(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """The measurements of these attempts; attempts without any are missing."""
        wanted = set(allocation_ids)
        return {
            row.allocation_id: row.measure
            for of_job in self._measures.values()
            for row in of_job.values()
            if row.allocation_id in wanted
        }

    def response(self, user: str, key: str) -> ResponseRow | None:
        """The stored response to a request with this idempotency key."""
        return self._rows[ResponseRow].get((user, key))

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return sorted(self._all(Tenant), key=attrgetter("id"))

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return sorted(self._all(Token), key=attrgetter("id"))

    def identities(self) -> list[Identity]:
        """The identities of nodes: the authority, join tokens and keys, by kind and id."""
        rows = self._rows
        return sorted(
            (*rows[Authority].values(), *rows[JoinToken].values(), *rows[NodeKey].values()),
            key=identity_key,
        )

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Entries of the audit log with their numbers, the newest first."""
        found = (
            (number, row)
            for number, row in reversed(self._audit)
            if (query.before is None or number < query.before)
            and row.at_ms >= query.since_ms
            and query.user in {"", row.user}
            and query.action in {"", row.action}
            and query.outcome in {"", row.outcome}
        )
        return list(islice(found, query.limit))

    def pools(self) -> list[PoolQuota]:
        """All pools that have a quota, by name."""
        return sorted(self._all(PoolQuota), key=attrgetter("pool"))

    def advance_reservations(self) -> list[AdvanceReservation]:
        """All advance reservations by number, including past ones."""
        return sorted(self._all(AdvanceReservation), key=attrgetter("number"))

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        return sorted(self._all(Service), key=attrgetter("number"))

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return sorted(self._all(Node), key=attrgetter("ordinal", "id"))

    def allocations(self) -> list[Allocation]:
        """All allocations, by id."""
        return sorted(self._all(Allocation), key=attrgetter("id"))

    def reservations(self) -> list[Reservation]:
        """The reservations of pending jobs, by job number."""
        return sorted(
            (row.reservation for row in self._all(ReservationRow)), key=attrgetter("job_number")
        )

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user; None comes first."""
        return sorted(
            self._all(UsageRow),
            key=lambda row: (*_none_first(row.period_ms, 0), row.tenant, *_none_first(row.user)),
        )

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time of the last week of each account, by tenant and user; None comes first."""
        return sorted(self._all(WeekUsageRow), key=lambda row: (row.tenant, *_none_first(row.user)))

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of pending jobs."""
        return sorted(
            (
                row
                for row in self._all(EstimateRow)
                if (row.start_ms is None) == (started_since_ms is None)
                and (row.start_ms or 0) >= (started_since_ms or 0)
            ),
            key=lambda row: (row.start_ms or 0, row.job_id),
        )

    def last_estimates(self, limit: int) -> list[EstimateRow]:
        """The estimates of the jobs that started last, the latest first."""
        return self.estimates(started_since_ms=0)[::-1][:limit]

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user; None comes first."""
        return sorted(self._all(ShareRow), key=lambda row: (row.tenant, *_none_first(row.user)))

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait to be delivered, the oldest first."""
        return sorted(self._all(NoticeRow), key=attrgetter("at_ms", "id"))

    def cursor(self, name: str) -> CursorRow | None:
        """The position of a reader in the history."""
        return self._rows[CursorRow].get(name)

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """Events with sequence numbers larger than `after`."""
        deleted = self._last_event - len(self._events)
        start = max(0, after - deleted)
        return list(
            enumerate(islice(self._events, start, start + limit), start=deleted + start + 1)
        )

    def last_event(self) -> int:
        """The largest sequence number so far; 0 without any event."""
        return self._last_event

    def next_number(self) -> int:
        """The number of the next job; no number is used twice."""
        return self._next_number

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then to the archive, the oldest first; returns how many."""
        ends = sorted(
            (end_ms, row.job.number, row.job.id)
            for row in self._jobs.values()
            if (end_ms := _ended_at(row)) is not None and end_ms < ended_before_ms
        )[:limit]
        for _, _, job_id in ends:
            self._archived[job_id] = self._jobs.pop(job_id)
        return len(ends)

    def delete_expired(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Delete rows that are older than the cut-offs; returns how many."""
        responses = [
            key for key, row in self._rows[ResponseRow].items() if row.at_ms < before.responses_ms
        ][:limit]
        for response in responses:
            del self._rows[ResponseRow][response]
        needed = {
            launch.captured
            for job_id, launch in self._launches.items()
            if job_id in self._jobs
            and _needs_environment(self._jobs[job_id], before.environments_ms)
        }
        environments = [name for name in self._rows[EnvironmentRow] if name not in needed][:limit]
        for name in environments:
            del self._rows[EnvironmentRow][name]
        hours = [key for key in sorted(self._rows[DeviceHour]) if key[0] < before.hours_ms][:limit]
        for hour in hours:
            del self._rows[DeviceHour][hour]
        events = 0
        for event in self._events[:limit]:
            if event.at_ms >= before.events_ms:
                break
            events += 1
        del self._events[:events]
        audit = {number for number, row in self._audit[:limit] if row.at_ms < before.audit_ms}
        self._audit = [entry for entry in self._audit if entry[0] not in audit]
        estimates = [
            row.job_id
            for row in self.estimates(started_since_ms=0)
            if (row.start_ms or 0) < before.events_ms
        ][:limit]
        for job_id in estimates:
            del self._rows[EstimateRow][job_id]
        rows = len(responses) + len(environments) + len(hours) + len(audit) + len(estimates)
        return events + rows

    def unavailable_reason(self) -> str:
        """Return nothing: it is always available."""
        return ""

    def full_reason(self) -> str:
        """Return nothing: it has no disk."""
        return ""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _needs_environment(row: JobRow, ended_before_ms: int) -> bool:
    return row.state not in ENDED or (row.end_ms or 0) >= ended_before_ms


def _ended_at(row: JobRow) -> int | None:
    return row.end_ms if row.state in ENDED else None


def _none_first(value: Any, nothing: Any = "") -> tuple[bool, Any]:
    return (value is not None, nothing if value is None else value)
