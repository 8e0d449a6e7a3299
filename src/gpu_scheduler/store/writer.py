"""The one that writes to a database: batches of rows come in, one transaction each goes out.

It keeps no state that the database does not have too, but remembers numbers and texts between
commits; when somebody else has written, or a commit has failed, it reads them anew. It must never
be used by two threads at once; a lock makes that safe, not fast.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from threading import Lock
from typing import Any

from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.measures import AttemptMeasure, DeviceHour
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.model.token import Token
from gpu_scheduler.model.window import Window
from gpu_scheduler.store.codec import (
    MODELS,
    NODE,
    PLACEMENTS,
    PROMISE,
    TASK_LIFE,
    TENANT,
    TOTALS,
    VARIABLES,
    WINDOW,
    encode_events,
    values_of_events,
)
from gpu_scheduler.store.faults import said_plainly
from gpu_scheduler.store.job_writer import SQL, JobWriter
from gpu_scheduler.store.rows import (
    AnswerRow,
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
    PromiseRow,
    RemovedAllocation,
    RemovedEstimate,
    RemovedNode,
    RemovedNotice,
    RemovedPromise,
    RemovedTenant,
    RemovedWindow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

MOST_EVENTS = 1000
"""How many events are kept in one piece, which is read as a whole."""


class Writer:
    """Commits, archives and forgets."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Take over a connection; the path is for messages."""
        self._connection = connection
        self._path = path
        self._lock = Lock()
        self._jobs = JobWriter(connection)
        self._last_event = 0
        self._seen_version: int | None = None

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch; returns the sequence number of the last event so far."""
        groups: dict[type, list[Any]] = {}
        for write in writes:
            if type(write) is NewJobs:
                groups.setdefault(EventRow, []).append(write)
            home = _HOMES.get(type(write))
            if home in groups:
                groups[home].append(write)
            elif home is not None:
                groups[home] = [write]
            else:
                raise InternalError(f"the store does not know rows of type {type(write).__name__}")
        with self._transaction():
            before = (self._jobs.next_number, self._last_event)
            self._keep(groups)
            after = (self._jobs.next_number, self._last_event)
            if after != before:
                self._connection.execute(SQL["write_counters"], after)
        return self._last_event

    def archive(self, *, ended_before_ms: int, limit: int) -> int:
        """Move jobs that ended before then to the archive; says how many."""
        with self._transaction():
            found = self._connection.execute(SQL["old_ends"], (ended_before_ms, limit)).fetchall()
            numbers = [number for (number,) in found]
            if numbers:
                self._jobs.move(numbers, "jobs", "archived_jobs")
        return len(numbers)

    def forget(
        self,
        *,
        answers_before_ms: int,
        events_before_ms: int,
        environments_before_ms: int,
        hours_before_ms: int,
        audit_before_ms: int,
        limit: int,
    ) -> int:
        """Drop what is old: answers, events, hours, records, environments; says how many."""
        execute = self._connection.execute
        with self._transaction():
            answers = execute(SQL["forget_answers"], (answers_before_ms, limit)).rowcount
            environments = execute(
                SQL["forget_environments"], (environments_before_ms, limit)
            ).rowcount
            hours = execute(SQL["forget_hours"], (hours_before_ms, limit)).rowcount
            audit = execute(SQL["forget_audit"], (audit_before_ms, limit)).rowcount
            events = self._forget_events(events_before_ms, limit)
            events += execute(SQL["forget_estimates"], (events_before_ms, limit)).rowcount
        return answers + environments + hours + audit + events

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._connection.close()

    # --- a transaction

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, said_plainly(self._path):
            self._connection.execute(SQL["begin"])
            try:
                self._look_for_others()
                yield
                self._connection.execute(SQL["commit"])
            except BaseException as error:
                # What is remembered here may now be more than the database has.
                self._seen_version = None
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute(SQL["rollback"])
                if isinstance(error, TypeError | ValueError | OverflowError):
                    raise InternalError(f"a row cannot be kept: {error}") from error
                raise

    def _look_for_others(self) -> None:
        """Read all numbers anew if they may have changed."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._seen_version:
            return
        counters = self._connection.execute(SQL["read_counters"]).fetchone()
        next_number, self._last_event, last_spec, last_launch, archived = counters
        self._jobs.restart(next_number, last_spec, last_launch, archived)
        self._seen_version = version

    # --- rows

    def _keep(self, groups: dict[type, list[Any]]) -> None:
        for new in groups.pop(NewJobs, ()):
            self._jobs.keep_new(new)
        if JobRow in groups or LaunchRow in groups:
            self._jobs.keep(groups.pop(JobRow, []), groups.pop(LaunchRow, []))
        if EventRow in groups:
            self._append(groups.pop(EventRow))
        for kind, rows in groups.items():
            query, values = _PLAIN[kind]
            if kind in _REMOVALS:
                rows = self._remove(kind, rows)  # noqa: PLW2901
            self._connection.executemany(SQL[query], map(values, rows))

    def _append(self, rows: list[EventRow | NewJobs]) -> None:
        events = values_of_events(rows)
        for start in range(0, len(events), MOST_EVENTS):
            piece = events[start : start + MOST_EVENTS]
            first = self._last_event + 1
            self._last_event += len(piece)
            newest_ms = max(event[0] for event in piece)
            self._connection.execute(
                SQL["insert_history"], (first, self._last_event, newest_ms, encode_events(piece))
            )

    def _remove(self, kind: type, rows: list[Any]) -> list[Any]:
        """Remove what is gone at the end of the batch; returns what is there."""
        latest = {row.id: row for row in rows}
        gone = [(row.id,) for row in latest.values() if type(row) is not kind]
        self._connection.executemany(SQL[_REMOVALS[kind]], gone)
        return [row for row in latest.values() if type(row) is kind]

    def _forget_events(self, before_ms: int, limit: int) -> int:
        last = gone = 0
        pieces = self._connection.execute(SQL["first_batches"], (limit,)).fetchall()
        for first_sequence, last_sequence, newest_ms in pieces:
            count = last_sequence - first_sequence + 1
            if newest_ms >= before_ms or (gone and gone + count > limit):
                break
            last, gone = last_sequence, gone + count
        if gone:
            self._connection.execute(SQL["forget_history"], (last,))
        return gone


# For each kind of row: its statement, and its values in the order of the statement.
_PLAIN: dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    TaskRow: (
        "upsert_task",
        lambda row: (
            row.job_id,
            row.task,
            row.state.value,
            row.attempt,
            row.preemptions,
            row.failures,
            row.exit_code,
            row.signal,
            row.first_start_ms,
            row.start_ms,
            row.end_ms,
            TASK_LIFE.encode(TASK_LIFE.values(row)),
        ),
    ),
    AttemptRow: (
        "upsert_attempt",
        lambda row: (
            row.allocation_id,
            row.job_id,
            row.task,
            row.attempt,
            PLACEMENTS.encode(row.placements),
            row.start_ms,
            row.end_ms,
            row.state.value,
            row.exit_code,
            row.signal,
            row.detail,
            MODELS.encode(row.gpu_models),
        ),
    ),
    AttemptMeasure: (
        "upsert_attempt_measure",
        lambda row: (
            row.allocation_id,
            row.job_id,
            row.task,
            row.attempt,
            row.warning,
            *astuple(row.measure),
        ),
    ),
    DeviceHour: ("upsert_device_hour", astuple),
    EnvironmentRow: ("upsert_environment", lambda row: (row.name, VARIABLES.encode(row.variables))),
    UsageRow: (
        "upsert_usage",
        lambda row: (row.period_ms, row.tenant, row.user, TOTALS.encode(row.totals)),
    ),
    ShareRow: (
        "upsert_share",
        lambda row: (row.tenant, row.user, row.usage, row.recent, row.rate, row.as_of_ms),
    ),
    AnswerRow: (
        "upsert_answer",
        lambda row: (row.user, row.key, row.request_hash, row.status, row.body, row.at_ms),
    ),
    NoticeRow: (
        "upsert_notice",
        lambda row: (
            row.id,
            row.target,
            row.at_ms,
            row.document,
            row.next_ms,
            row.tries,
            row.error,
        ),
    ),
    CursorRow: ("upsert_cursor", lambda row: (row.name, row.sequence, row.note)),
    Allocation: (
        "upsert_allocation",
        lambda row: (
            row.id,
            row.job_id,
            row.task,
            row.attempt,
            row.start_ms,
            PLACEMENTS.encode(row.placements),
        ),
    ),
    PromiseRow: (
        "upsert_promise",
        lambda row: (
            row.id,
            row.reservation.job_number,
            row.reservation.at_ms,
            PROMISE.encode(row.reservation),
        ),
    ),
    Node: (
        "upsert_node",
        lambda row: (
            row.id,
            row.ordinal,
            row.state.value,
            row.cpu_milli,
            row.memory_mb,
            NODE.encode(row),
        ),
    ),
    Tenant: ("upsert_tenant", lambda row: (row.id, TENANT.encode(row))),
    Token: (
        "upsert_token",
        lambda row: (
            row.id,
            row.secret_hash,
            row.name,
            row.user,
            row.uid,
            row.tenant,
            row.role.value,
            row.created_by,
            row.created_ms,
            row.expires_ms,
            row.last_used_ms,
            row.revoked_ms,
        ),
    ),
    AuditRow: ("insert_audit", tuple),
    WeekUsageRow: (
        "upsert_week",
        lambda row: (row.tenant, row.user, row.week_ms, row.gpu_milli_ms),
    ),
    EstimateRow: (
        "upsert_estimate",
        lambda row: (
            row.job_id,
            row.tenant,
            row.user,
            row.made_ms,
            row.promised_ms,
            row.basis,
            row.start_ms,
        ),
    ),
    Window: ("upsert_window", lambda row: (row.id, row.number, WINDOW.encode(row))),
    PoolQuota: ("upsert_pool", lambda row: (row.pool.value, row.percent, int(row.elastic))),
}
_REMOVALS = {
    Allocation: "delete_allocation",
    NoticeRow: "delete_notice",
    PromiseRow: "delete_promise",
    Node: "delete_node",
    Tenant: "delete_tenant",
    Window: "delete_window",
    EstimateRow: "delete_estimate",
}
# Rows and their removals are one group, as their order matters.
_HOMES: dict[type, type] = {
    kind: kind for kind in (JobRow, LaunchRow, NewJobs, EventRow, *_PLAIN)
} | {
    RemovedAllocation: Allocation,
    RemovedNotice: NoticeRow,
    RemovedPromise: PromiseRow,
    RemovedNode: Node,
    RemovedTenant: Tenant,
    RemovedWindow: Window,
    RemovedEstimate: EstimateRow,
}
