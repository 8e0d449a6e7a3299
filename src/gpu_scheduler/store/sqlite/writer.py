"""The one that writes to a database: batches of rows come in, one transaction each goes out.

It keeps no state that the database does not have too, but remembers numbers and texts between
commits; when somebody else has written, or a commit has failed, it reads them anew. It must never
be used by two threads at once; a lock makes that safe, not fast.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.store.codec import encode_events, values_of_events
from gpu_scheduler.store.contract import Cutoffs
from gpu_scheduler.store.job_values import (
    Counts,
    JobValues,
    count,
    count_new,
    is_fresh,
    later_values,
    number_in,
    own_values,
)
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.sql_files import named_queries
from gpu_scheduler.store.sqlite.files import said_plainly
from gpu_scheduler.store.tables import REMOVABLE, TABLES, Groups, Table, divided, grouped

# --- Writing jobs to SQLite, the one thing that has to be fast: a thousand in a few milliseconds.
#
# Job rows and launches come in, statements go to the connection, inside a transaction of the
# caller.
# New jobs go in by statements of many rows each: a statement for each row costs twice as much.

SQL = named_queries("write.sql")
CHUNK = 128
"""How many new jobs one statement inserts."""
_INSERT_ONE = f"{SQL['insert_fresh_job']} {SQL['fresh_job_values']}"
_INSERT_CHUNK = f"{SQL['insert_fresh_job']} {', '.join([SQL['fresh_job_values']] * CHUNK)}"
MOST_ALIKE = 256
"""How many jobs with the same wishes one statement inserts, at the most."""


class JobWriter:
    """Keeps jobs and launches, and counts them. `restart` whenever its numbers may be wrong."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """For one connection, without any knowledge yet."""
        self._connection = connection
        self._values = JobValues()
        self.next_number = 1
        self._last_archived = 0

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Begin with what the database says."""
        self.next_number = next_number
        self._last_archived = archived
        self._values.restart(last_spec, last_launch)

    def keep(self, rows: list[JobRow], launch_rows: list[LaunchRow]) -> None:
        """Insert or replace; of rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        counts: Counts = Counter()
        known = [number for number in latest if number < self.next_number]
        if known:
            self._take_out(known, counts)
        fresh, others = [], []
        for number, row in latest.items():
            values = self._values.fresh(row, launches.pop(row.job.id, None))
            if number >= self.next_number and is_fresh(row):
                fresh.append(values)
            else:
                others.append((*values, *later_values(row)))
        count(latest.values(), counts)
        late = [
            (self._values.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
        self._write_shared()
        self._insert(fresh)
        self._connection.executemany(SQL["upsert_job"], others)
        for launch_number, job_id in late:
            self._set_launch(job_id, launch_number)
        self.add_counts(counts)
        if latest:
            self.next_number = max(self.next_number, max(latest) + 1)

    def keep_new(self, new: NewJobs) -> None:
        """Insert jobs that nobody has written before; what they have in common is bound once."""
        common = self._values.common(new)
        self._write_shared()
        values = own_values(new)
        start = 0
        while start < len(values):
            size = min(MOST_ALIKE, 1 << (len(values) - start).bit_length() - 1)
            piece = chain.from_iterable(values[start : start + size])
            self._connection.execute(_insert_alike(size), (*common, *piece))
            start += size
        counts: Counts = Counter()
        count_new(new, counts)
        self.add_counts(counts)
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def move(self, numbers: list[int], table: str, into: str) -> None:
        """Move jobs between the kept and the archived ones, and count them there."""
        listed = _json(numbers)
        archived = int(into == "archived_jobs")
        counts: Counts = Counter()
        for key in self._connection.execute(SQL["states_of"].format(table=table), (listed,)):
            counts[(archived, *key)] += 1
            counts[(1 - archived, *key)] -= 1
        self._connection.execute(SQL["copy_jobs"].format(table=table, into=into), (listed,))
        self._connection.execute(SQL["delete_jobs"].format(table=table), (listed,))
        self.add_counts(counts)
        if archived:
            self._last_archived = max(self._last_archived, *numbers)

    def add_counts(self, counts: Counts) -> None:
        """Change the kept numbers of jobs."""
        changes = [(*key, change) for key, change in counts.items() if change]
        self._connection.executemany(SQL["add_count"], changes)

    # --- statements

    def _insert(self, fresh: list[tuple[Any, ...]]) -> None:
        whole = len(fresh) - len(fresh) % CHUNK
        for start in range(0, whole, CHUNK):
            values = list(chain.from_iterable(fresh[start : start + CHUNK]))
            self._connection.execute(_INSERT_CHUNK, values)
        self._connection.executemany(_INSERT_ONE, fresh[whole:])

    def _write_shared(self) -> None:
        shared = ((self._values.specs, "insert_spec"), (self._values.launches, "insert_launch"))
        for parts, query in shared:
            if parts.new:
                self._connection.executemany(SQL[query], parts.new)
                parts.new.clear()
            parts.trim()

    def _take_out(self, numbers: list[int], counts: Counts) -> None:
        """Before jobs are written again: back from the archive, and out of the counts."""
        listed = _json(numbers)
        if any(number <= self._last_archived for number in numbers):
            query = SQL["states_of"].format(table="archived_jobs")
            if self._connection.execute(query, (listed,)).fetchone():
                self.move(numbers, "archived_jobs", "jobs")
        for key in self._connection.execute(SQL["states_of"].format(table="jobs"), (listed,)):
            counts[(0, *key)] -= 1

    def _set_launch(self, job_id: str, launch_number: int) -> None:
        """The launch of a job that is not in this batch."""
        values = (launch_number, number_in(job_id), job_id)
        for table in ("jobs", "archived_jobs"):
            if self._connection.execute(SQL["set_launch"].format(table=table), values).rowcount:
                return
        raise InternalError(f"the launch of job {job_id} came before the job itself")


@cache
def _insert_alike(count: int) -> str:
    """Insert so many jobs: seven values for all of them, then four for each."""
    return SQL["insert_alike_jobs"].format(", ".join(["(?, ?, ?, ?)"] * count))


def _json(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(numbers).decode()


# --- The one that writes to a database: batches of rows come in, one transaction each goes out.

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
