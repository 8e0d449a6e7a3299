"""The one that writes to PostgreSQL: batches of rows come in, one transaction each goes out.

Every transaction holds the row of `meta`, so two servers never write at once, and changes the row
of this writer in `writers`. When the connection is lost while COMMIT is under way, nobody knows
whether it was done: then that row is looked up on a new connection, for as long as it takes, before
anything is said. It must never be used by two threads at once; a lock makes that safe, not fast.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from uuid import uuid4

import psycopg
import structlog
from psycopg import pq

from gpu_scheduler.model.errors import (
    InternalError,
    OutcomeUnknown,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
)
from gpu_scheduler.store.codec import encode_events, values_of_events
from gpu_scheduler.store.postgres import schema
from gpu_scheduler.store.postgres.connection import Connection, connect, is_broken
from gpu_scheduler.store.postgres.faults import is_away, of_postgres
from gpu_scheduler.store.postgres.job_writer import LEAST_COPIED, SQL, JobWriter
from gpu_scheduler.store.postgres.link import PROBE_S, Link
from gpu_scheduler.store.postgres.statements import Statements, arrays
from gpu_scheduler.store.questions import Cutoffs
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.tables import REMOVABLE, TABLES, Groups, divided, grouped
from gpu_scheduler.store.writer import MOST_EVENTS

WRITER = "gpu-scheduler writer"
log = structlog.get_logger("database")

Guard = Callable[[Connection], None]
"""Looks within the transaction whether we may write, and raises if not."""


class Writer:
    """Commits, archives and forgets."""

    def __init__(self, link: Link) -> None:
        """Connect when there is something to write."""
        self.guard: Guard | None = None
        self._link = link
        self._id = str(uuid4())
        self._name = f"{WRITER} {self._id[:8]}"
        self._lock = Lock()
        self._connection: Connection | None = None
        self._statements: Statements | None = None
        self._jobs = JobWriter()
        self._last_event = 0
        self._own_commits = 0
        self._seen_commits: int | None = None

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch; returns the sequence number of the last event so far."""
        groups = grouped(writes)
        with self._transaction() as connection:
            new = groups.pop(NewJobs, [])
            for one in new:
                if len(one.jobs) >= LEAST_COPIED:
                    self._jobs.copy_new(connection, one)
            with connection.pipeline():
                for one in new:
                    if len(one.jobs) < LEAST_COPIED:
                        self._jobs.keep_new(connection, one)
                self._keep(connection, groups)
            self._jobs.check()
        return self._last_event

    def archive(self, *, ended_before_ms: int, limit: int) -> int:
        """Move jobs that ended before then to the archive; says how many."""
        with self._transaction() as connection:
            found = connection.execute(SQL["old_ends"], (ended_before_ms, limit)).fetchall()
            numbers = [number for (number,) in found]
            if numbers:
                self._jobs.move(connection, numbers, "jobs", "archived_jobs")
        return len(numbers)

    def forget(self, before: Cutoffs, *, limit: int) -> int:
        """Drop what is old: answers, events, hours, records, environments; says how many."""
        with self._transaction() as connection:
            gone = sum(
                connection.execute(SQL[query], (before_ms, limit)).rowcount
                for query, before_ms in (
                    ("forget_answers", before.answers_ms),
                    ("forget_environments", before.environments_ms),
                    ("forget_hours", before.hours_ms),
                    ("forget_audit", before.audit_ms),
                    ("forget_estimates", before.events_ms),
                )
            )
            gone += self._forget_events(connection, before.events_ms, limit)
            connection.execute(SQL["forget_writers"], (self._id,))
        return gone

    def end_others(self) -> int:
        """End the connections of all other writers to this database; says how many."""
        with self._lock:
            connection = self._connected()
            row = connection.execute(
                SQL["end_other_writers"], (f"{WRITER}%", self._name)
            ).fetchone()
            return int(row[0]) if row else 0

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._disconnect()

    # --- a transaction

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock:
            self._link.check()
            connection = self._begun()
            try:
                yield connection
                self._mark(connection)
            except BaseException as error:
                self._give_up(error)
                raise
            self._commit(connection)

    def _begun(self) -> Connection:
        """A connection within a transaction that nobody else can disturb."""
        try:
            connection = self._connected()
            try:
                self._begin(connection)
            except psycopg.Error:
                if not is_broken(connection):
                    raise
                # Nothing was written yet, so a connection that broke meanwhile is just replaced.
                self._disconnect()
                connection = self._connected()
                self._begin(connection)
        except BaseException as error:
            self._give_up(error)
            raise
        return connection

    def _begin(self, connection: Connection) -> None:
        connection.execute("BEGIN")
        if self.guard is not None:
            self.guard(connection)
        row = connection.execute(SQL["lock"]).fetchone()
        if row is None:
            raise InternalError("the table meta has no row; restore a backup")
        commits, next_number, last_event = row
        if commits != self._seen_commits:
            # Somebody else has written, or we do not know what we wrote.
            counters = connection.execute(SQL["read_counters"]).fetchone()
            assert counters is not None  # noqa: S101 - it selects without a table
            self._jobs.restart(next_number, *counters)
            self._seen_commits = commits
        self._last_event = last_event

    def _mark(self, connection: Connection) -> None:
        """What must change with every commit."""
        values = (self._jobs.next_number, self._last_event)
        with connection.pipeline():
            connection.execute(SQL["write_counters"], values)
            marked = connection.execute(SQL["mark_commit"], (self._own_commits + 1, self._id))
        if not marked.rowcount:
            # Nobody wrote here for so long that our row was dropped; without it nobody could tell
            # later whether this commit was kept.
            connection.execute(SQL["register_writer"], (self._id, _who()))
            connection.execute(SQL["mark_commit"], (self._own_commits + 1, self._id))

    def _commit(self, connection: Connection) -> None:
        self._own_commits += 1
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            self._seen_commits = None
            if not is_broken(connection):
                raise of_postgres(error, self._link.address) from error
            self._disconnect()
            log.warning("the connection was lost during a commit; looking whether it was kept")
            if not self._was_kept(error):
                raise of_postgres(error, self._link.address) from error
            log.info("the commit was kept")
            return
        if self._seen_commits is not None:
            self._seen_commits += 1

    def _was_kept(self, error: psycopg.Error) -> bool:
        """Look until it is known."""
        self._link.lost(str(of_postgres(error, self._link.address)))
        while True:
            try:
                connection = self._connected()
                row = connection.execute(SQL["last_commit"], (self._id,)).fetchone()
            except (psycopg.Error, SchedulerError) as away:
                self._disconnect()
                if isinstance(away, StoreTooNew | StoreDamaged):
                    raise self._unknown(str(away)) from away
                if self._link.pause(PROBE_S):
                    raise self._unknown("the server stops before it is back") from away
            else:
                return row is not None and row[0] >= self._own_commits

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the database {self._link.address} was lost during a commit, and nobody can look now: "
            f"{why}. Whether this was done is not known; ask again with the same Idempotency-Key, "
            "or look, once it is back"
        )

    def _give_up(self, error: BaseException) -> None:
        """Nothing was done; what is remembered here may now be more than the database has."""
        self._seen_commits = None
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                    connection.execute("ROLLBACK")
            if is_broken(connection):
                self._disconnect()
        if isinstance(error, psycopg.Error):
            plain = of_postgres(error, self._link.address)
            if is_away(error) and (self._connection is None or self._connection.closed):
                self._link.lost(str(plain))
            raise plain from error
        if isinstance(error, TypeError | ValueError | OverflowError):
            raise InternalError(f"a row cannot be kept: {error}") from error

    # --- the connection

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = connect(self._link.address, self._name)
        try:
            connection.execute(SQL["be_durable"])
            schema.check(connection, self._link.address)
            # First, as all that follows would wait for what such a connection holds.
            connection.execute(SQL["end_lost_connections"], (self._name,))
            connection.execute(SQL["register_writer"], (self._id, _who()))
            self._statements = Statements(schema.column_types(connection))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._seen_commits = None
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    # --- rows

    def _keep(self, connection: Connection, groups: Groups) -> None:
        statements = self._statements
        assert statements is not None  # noqa: S101 - there is a connection
        if JobRow in groups or LaunchRow in groups:
            rows, launches = groups.pop(JobRow, []), groups.pop(LaunchRow, [])
            self._jobs.keep(connection, statements, rows, launches)
        if EventRow in groups:
            self._append(connection, groups.pop(EventRow))
        for kind, rows in groups.items():
            table = TABLES[kind]
            if kind in REMOVABLE:
                rows, gone = divided(kind, rows)  # noqa: PLW2901
                if gone:
                    connection.execute(statements.deletion(table), (gone,))
            if values := table.latest(rows):
                connection.execute(statements.insertion(table), arrays(values))

    def _append(self, connection: Connection, rows: list[EventRow | NewJobs]) -> None:
        events = values_of_events(rows)
        pieces: list[tuple[Any, ...]] = []
        for start in range(0, len(events), MOST_EVENTS):
            piece = events[start : start + MOST_EVENTS]
            first = self._last_event + 1
            self._last_event += len(piece)
            newest_ms = max(event[0] for event in piece)
            pieces.append((first, self._last_event, newest_ms, encode_events(piece)))
        if pieces:
            connection.execute(SQL["insert_history"], arrays(pieces))

    def _forget_events(self, connection: Connection, before_ms: int, limit: int) -> int:
        last = gone = 0
        pieces = connection.execute(SQL["first_batches"], (limit,)).fetchall()
        for first_sequence, last_sequence, newest_ms in pieces:
            size = last_sequence - first_sequence + 1
            if newest_ms >= before_ms or (gone and gone + size > limit):
                break
            last, gone = last_sequence, gone + size
        if gone:
            connection.execute(SQL["forget_history"], (last,))
        return gone


def _who() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"
