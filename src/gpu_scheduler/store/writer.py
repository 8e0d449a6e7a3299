"""The one that writes to a database: batches of rows come in, one transaction each goes out.

It keeps no state that the database does not have too, but remembers numbers and texts between
commits; when somebody else has written, or a commit has failed, it reads them anew. It must never
be used by two threads at once; a lock makes that safe, not fast.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.store.codec import encode_events, values_of_events
from gpu_scheduler.store.faults import said_plainly
from gpu_scheduler.store.job_writer import SQL, JobWriter
from gpu_scheduler.store.questions import Cutoffs
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.tables import REMOVABLE, TABLES, Groups, Table, divided, grouped

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
        groups = grouped(writes)
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

    def forget(self, before: Cutoffs, *, limit: int) -> int:
        """Drop what is old: answers, events, hours, records, environments; says how many."""
        execute = self._connection.execute
        with self._transaction():
            answers = execute(SQL["forget_answers"], (before.answers_ms, limit)).rowcount
            environments = execute(
                SQL["forget_environments"], (before.environments_ms, limit)
            ).rowcount
            hours = execute(SQL["forget_hours"], (before.hours_ms, limit)).rowcount
            audit = execute(SQL["forget_audit"], (before.audit_ms, limit)).rowcount
            events = self._forget_events(before.events_ms, limit)
            events += execute(SQL["forget_estimates"], (before.events_ms, limit)).rowcount
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

    def _keep(self, groups: Groups) -> None:
        for new in groups.pop(NewJobs, ()):
            self._jobs.keep_new(new)
        if JobRow in groups or LaunchRow in groups:
            self._jobs.keep(groups.pop(JobRow, []), groups.pop(LaunchRow, []))
        if EventRow in groups:
            self._append(groups.pop(EventRow))
        for kind, rows in groups.items():
            table = TABLES[kind]
            if kind in REMOVABLE:
                rows, gone = divided(kind, rows)  # noqa: PLW2901
                self._connection.executemany(_deletion(table), [(name,) for name in gone])
            self._connection.executemany(_insertion(table), map(table.values, rows))

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


@cache
def _insertion(table: Table) -> str:
    """Insert a row, or replace the one with the same key. Names are our own, values are bound."""
    columns = ", ".join(f'"{name}"' for name in table.columns)
    marks = ", ".join("?" * len(table.columns))
    return f"INSERT OR REPLACE INTO {table.name} ({columns}) VALUES ({marks})"  # noqa: S608


@cache
def _deletion(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {table.key[0]} = ?"  # noqa: S608
