"""The store in one SQLite file: for a workstation, and for everything that fits on one machine.

Batches come in and are durable when `commit` returns (write-ahead log, synchronous=FULL). Reads
come from connections that cannot write, as many as there are threads reading at once; they see
what has been committed and nothing else. `commit`, `archive` and `forget` are for one thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.caller import Role
from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measures import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import JobState
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.model.token import Token
from gpu_scheduler.model.window import Window
from gpu_scheduler.store.codec import (
    LAUNCH,
    MODELS,
    NODE,
    PLACEMENTS,
    PROMISE,
    STATES,
    TASK_LIFE,
    TENANT,
    TOTALS,
    VARIABLES,
    WINDOW,
    WORDS,
    decode_events,
    words,
)
from gpu_scheduler.store.faults import understood
from gpu_scheduler.store.files import Steps, open_reader, open_writer
from gpu_scheduler.store.finding import (
    count_statements,
    is_counted,
    listed,
    page_statement,
    reading,
)
from gpu_scheduler.store.job_reader import job_row
from gpu_scheduler.store.job_writer import number_in
from gpu_scheduler.store.queries import migrations
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
    Write,
)
from gpu_scheduler.store.writer import Writer

T = TypeVar("T")

BUSY_MS = 5_000
LARGEST = 2**63 - 1
_TABLES = ("jobs", "archived_jobs")
_HOUR_FIELDS = tuple(field.name for field in fields(DeviceHour))


class SqliteStore:
    """One file. It is made if it is not there, and refused if it is damaged or too new."""

    def __init__(
        self, path: str | Path, *, busy_ms: int = BUSY_MS, steps: Steps | None = None
    ) -> None:
        """Open the file; wait at most so long for other processes that hold it locked."""
        self.path = Path(path)
        self._busy_ms = busy_ms
        writer = open_writer(self.path, migrations() if steps is None else steps, busy_ms=busy_ms)
        self._writer = Writer(writer, self.path)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    # --- writing

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch, and return the sequence number of the last event so far."""
        return self._writer.commit(writes)

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then out of the way, the oldest end first; says how many."""
        return self._writer.archive(ended_before_ms=ended_before_ms, limit=limit)

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
        """Drop what is old: answers, events, hours, records, environments. Says how many."""
        return self._writer.forget(
            answers_before_ms=answers_before_ms,
            events_before_ms=events_before_ms,
            environments_before_ms=environments_before_ms,
            hours_before_ms=hours_before_ms,
            audit_before_ms=audit_before_ms,
            limit=limit,
        )

    def close(self) -> None:
        """Let go of the file. A reader that is at work lets go when it is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._writer.close()

    # --- jobs

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        for table in _TABLES:
            rows = self._jobs(reading("job", table=table), (number_in(job_id), job_id))
            if rows:
                return rows[0]
        return None

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        return self._jobs(reading("jobs"))

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        return self._jobs(reading("live_jobs"))

    def recent_ends(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        return self._jobs(reading("recent_ends"), (limit,))

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        mark = None
        if query.after_number is not None and query.sort != "number":
            number = {"number": query.after_number}
            found = self._row(reading("sort_key", key=query.sort), number)
            if found is None:
                return []
            mark = found[0]
        return self._jobs(*page_statement(query, mark))

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        if is_counted(query):
            counts = self._counts(query.user, query.tenant, archived=query.archived)
            return sum(counts.get(state, 0) for state in query.states or JobState)
        return sum(self._row(*counting)[0] for counting in count_statements(query))

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        return self._counts(user, tenant, archived=False)

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user: how many of their jobs are in each state."""
        values = {"user": user, "within": None if within is None else listed(within)}
        return self._rows(_sweep_count, reading("sweeps"), values)

    def _counts(self, user: str, tenant: str, *, archived: bool) -> dict[JobState, int]:
        values = {"user": user, "tenant": tenant, "archived": archived}
        return dict(self._rows(_state_count, reading("counts"), values))

    def _jobs(self, statement: str, values: Any = ()) -> list[JobRow]:
        return self._rows(job_row, statement, values)

    # --- what belongs to a job

    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        low, high = -LARGEST, LARGEST
        if only is not None:
            if not only:
                return []
            low, high = only.first, only.ranges[-1][1]
        rows = self._rows(_task_row, reading("tasks"), (job_id, low, high))
        return [row for row in rows if only is None or row.task in only]

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        for table in _TABLES:
            values = (number_in(job_id), job_id)
            found = self._rows(_launch, reading("launch", table=table), values)
            if found:
                return found[0]
        return None

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        found = self._rows(_variables, reading("environment"), (name,))
        return found[0] if found else None

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        return self._rows(_attempt_row, reading("attempts"), {"job_id": job_id, "task": task})

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        """What was measured on the attempts of a job, or of one task, by task and attempt."""
        values = {"job_id": job_id, "task": task}
        return self._rows(_attempt_measure, reading("attempt_measures"), values)

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measures of these jobs over all their attempts."""
        values = (WORDS.encode(tuple(job_ids)),)
        return dict(self._rows(_job_measure, reading("job_measures"), values))

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hours of all devices that begin in this time, by hour, node and device."""
        return self._rows(_device_hour, reading("device_hours"), (from_ms, before_ms))

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
        return self._rows(_attempt_row, reading("attempts_between"), values)

    def measures_of(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """What was measured on these attempts; where nothing was, there is none."""
        values = (WORDS.encode(tuple(allocation_ids)),)
        return dict(self._rows(_job_measure, reading("measures_of"), values))

    def answer(self, user: str, key: str) -> AnswerRow | None:
        """What was answered to a request before."""
        found = self._rows(_answer_row, reading("answer"), (user, key))
        return found[0] if found else None

    # --- the cluster

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return self._rows(lambda row: TENANT.decode(row[0]), reading("tenants"))

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return self._rows(_token, reading("tokens"))

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
        return self._rows(_audit_row, reading("audit"), values)

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        return self._rows(_pool, reading("pools"))

    def windows(self) -> list[Window]:
        """All reservations that people made, by number; those that are over as well."""
        return self._rows(lambda row: WINDOW.decode(row[0]), reading("windows"))

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return self._rows(lambda row: NODE.decode(row[0]), reading("nodes"))

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        return self._rows(_allocation, reading("allocations"))

    def promises(self) -> list[Reservation]:
        """The places and times that waiting jobs were promised, by the job's number."""
        return self._rows(lambda row: PROMISE.decode(row[0]), reading("promises"))

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user, None before all others."""
        return self._rows(
            lambda row: UsageRow(row[0], row[1], row[2], TOTALS.decode(row[3])), reading("usage")
        )

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time by week, by tenant and user, None before all others."""
        return self._rows(lambda row: WeekUsageRow(*row), reading("week_usage"))

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of those to come."""
        if started_since_ms is None:
            return self._rows(_estimate, reading("estimates_to_come"))
        return self._rows(_estimate, reading("estimates"), (started_since_ms,))

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user, None before all others."""
        return self._rows(lambda row: ShareRow(*row), reading("shares"))

    # --- history

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait, the oldest first."""
        return self._rows(_notice_row, reading("notices"))

    def cursor(self, name: str) -> CursorRow | None:
        """How far somebody has read the history."""
        found = self._rows(lambda row: CursorRow(*row), reading("cursor"), (name,))
        return found[0] if found else None

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""
        found: list[tuple[int, EventRow]] = []
        with self._reader() as reader:
            pieces = reader.execute(reading("history"), {"after": after})
            while len(found) < limit and (piece := pieces.fetchone()) is not None:
                numbered = enumerate(decode_events(piece[1]), start=piece[0])
                found.extend(item for item in numbered if item[0] > after)
            pieces.close()
        return found[:limit]

    def last_event(self) -> int:
        """The largest sequence number so far; 0 if there is no history."""
        return int(self._row(reading("last_event"))[0])

    def next_number(self) -> int:
        """The number of the next job; no number is ever given twice."""
        return int(self._row(reading("next_number"))[0])

    # --- connections

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses at this moment."""
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} has been closed")
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = open_reader(self.path, busy_ms=self._busy_ms)
        try:
            with understood(self.path):
                yield reader
        finally:
            self._give_back(reader)

    def _give_back(self, reader: sqlite3.Connection) -> None:
        if self._closed:
            reader.close()
        else:
            self._idle.append(reader)

    def _rows(self, make: Callable[[Any], T], statement: str, values: Any = ()) -> list[T]:
        with self._reader() as reader:
            return [make(row) for row in reader.execute(statement, values)]

    def _row(self, statement: str, values: Any = ()) -> Any:
        with self._reader() as reader:
            # All of it: a statement that is not read to its end would hold its snapshot.
            return next(iter(reader.execute(statement, values).fetchall()), None)


def _task_row(row: tuple[Any, ...]) -> TaskRow:
    return TaskRow(
        job_id=row[0],
        task=row[1],
        state=STATES[row[2]],
        attempt=row[3],
        preemptions=row[4],
        failures=row[5],
        exit_code=row[6],
        signal=row[7],
        first_start_ms=row[8],
        start_ms=row[9],
        end_ms=row[10],
        **TASK_LIFE.decode(row[11]),
    )


def _launch(row: tuple[str, str]) -> Launch:
    launch = dict(LAUNCH.decode(row[1]))
    if launch["argv"] is None:
        launch["argv"] = words(row[0])
    return Launch(**launch)


def _variables(row: tuple[str]) -> dict[str, str]:
    return dict(VARIABLES.decode(row[0]))


def _state_count(row: tuple[str, int]) -> tuple[JobState, int]:
    return STATES[row[0]], row[1]


def _sweep_count(row: tuple[str, str, int, int, int, int]) -> SweepCount:
    name, state, jobs, first, last, submit_ms = row
    return SweepCount(
        name=name, state=STATES[state], jobs=jobs, first=first, last=last, submit_ms=submit_ms
    )


def _attempt_row(row: tuple[Any, ...]) -> AttemptRow:
    return AttemptRow(
        allocation_id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        placements=PLACEMENTS.decode(row[4]),
        start_ms=row[5],
        end_ms=row[6],
        state=STATES[row[7]],
        exit_code=row[8],
        signal=row[9],
        detail=row[10],
        gpu_models=MODELS.decode(row[11]),
    )


def _measure(values: tuple[Any, ...]) -> Measure:
    gpu_ms, busy_percent_ms, peak_percent, power_ms, energy_uj, peak_memory_mb = values
    return Measure(
        gpu_ms=gpu_ms,
        busy_percent_ms=busy_percent_ms,
        peak_percent=peak_percent,
        power_ms=power_ms,
        energy_uj=energy_uj,
        peak_memory_mb=peak_memory_mb,
    )


def _attempt_measure(row: tuple[Any, ...]) -> AttemptMeasure:
    return AttemptMeasure(
        allocation_id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        warning=row[4],
        measure=_measure(row[5:]),
    )


def _job_measure(row: tuple[Any, ...]) -> tuple[str, Measure]:
    return row[0], _measure(row[1:])


def _device_hour(row: tuple[Any, ...]) -> DeviceHour:
    return DeviceHour(**dict(zip(_HOUR_FIELDS, row, strict=True)))


def _answer_row(row: tuple[Any, ...]) -> AnswerRow:
    user, key, request_hash, status, body, at_ms = row
    return AnswerRow(
        user=user, key=key, request_hash=request_hash, status=status, body=body, at_ms=at_ms
    )


def _notice_row(row: tuple[Any, ...]) -> NoticeRow:
    notice_id, target, at_ms, document, next_ms, tries, error = row
    return NoticeRow(
        id=notice_id,
        target=target,
        at_ms=at_ms,
        document=document,
        next_ms=next_ms,
        tries=tries,
        error=error,
    )


def _allocation(row: tuple[Any, ...]) -> Allocation:
    return Allocation(
        id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        placements=PLACEMENTS.decode(row[4]),
        start_ms=row[5],
    )


def _token(row: tuple[Any, ...]) -> Token:
    return Token(
        id=row[0],
        secret_hash=row[1],
        name=row[2],
        user=row[3],
        uid=row[4],
        tenant=row[5],
        role=Role(row[6]),
        created_by=row[7],
        created_ms=row[8],
        expires_ms=row[9],
        last_used_ms=row[10],
        revoked_ms=row[11],
    )


def _audit_row(row: tuple[Any, ...]) -> tuple[int, AuditRow]:
    return row[0], AuditRow(*row[1:])


def _estimate(row: tuple[Any, ...]) -> EstimateRow:
    names = ("job_id", "tenant", "user", "made_ms", "promised_ms", "basis", "start_ms")
    return EstimateRow(**dict(zip(names, row, strict=True)))


def _pool(row: tuple[Any, ...]) -> PoolQuota:
    return PoolQuota(pool=Pool(row[0]), percent=row[1], elastic=bool(row[2]))
