"""The writer for SQLite: batches of rows come in, and each is written in one transaction.

It caches counters and shared texts between commits, and reads the counters again when another
process has written or a commit has failed. One thread at a time: a lock makes concurrent calls
safe, not fast.
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

import msgspec

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.store.codec import history_chunks
from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.job_columns import (
    Counts,
    JobEncoder,
    count_jobs,
    count_new,
    has_never_run,
    individual_columns,
    job_number,
    progress_columns,
)
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.sealing import Cipher, reseal
from gpu_scheduler.store.sql_queries import delete_expired_rows, named_queries
from gpu_scheduler.store.sqlite.database_file import translate_errors
from gpu_scheduler.store.sqlite.space_reserve import SpaceReserve
from gpu_scheduler.store.tables import (
    REMOVABLE,
    TABLES,
    Groups,
    Table,
    group_by_type,
    split_removals,
)

SQL = named_queries("write.sql")
CHUNK = 128
"""How many pending jobs one statement inserts; one statement for each job costs twice as much."""
_INSERT_ONE = f"{SQL['insert_pending_job']} {SQL['pending_job_values']}"
_INSERT_CHUNK = f"{SQL['insert_pending_job']} {', '.join([SQL['pending_job_values']] * CHUNK)}"
MAX_SIMILAR = 256
"""How many jobs of one submission one statement inserts at most."""


class JobWriter:
    """Writes jobs and launches, and keeps `job_counts`, inside a transaction of the caller.

    Speed matters here: a thousand jobs take a few milliseconds. Call `restart` whenever its
    counters may differ from the database.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Start without counters: `restart` comes before the first write."""
        self._connection = connection
        self._encoder = JobEncoder()
        self.next_number = 1
        self._last_archived = 0

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Set the counters to those of the database."""
        self.next_number = next_number
        self._last_archived = archived
        self._encoder.restart(last_spec, last_launch)

    def upsert(self, rows: list[JobRow], launch_rows: list[LaunchRow]) -> None:
        """Insert or replace jobs; of several rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        counts = count_jobs(latest.values())
        known = [number for number in latest if number < self.next_number]
        if known:
            self._prepare_rewrite(known, counts)
        pending, others = [], []
        for number, row in latest.items():
            values = self._encoder.base_columns(row, launches.pop(row.job.id, None))
            if number >= self.next_number and has_never_run(row):
                pending.append(values)
            else:
                others.append((*values, *progress_columns(row)))
        late = [
            (self._encoder.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
        self._write_shared()
        whole = len(pending) - len(pending) % CHUNK
        for start in range(0, whole, CHUNK):
            chunk = list(chain.from_iterable(pending[start : start + CHUNK]))
            self._connection.execute(_INSERT_CHUNK, chunk)
        self._connection.executemany(_INSERT_ONE, pending[whole:])
        self._connection.executemany(SQL["upsert_job"], others)
        for launch_number, job_id in late:
            self._set_launch(job_id, launch_number)
        self.add_counts(counts)
        if latest:
            self.next_number = max(self.next_number, max(latest) + 1)

    def insert_new(self, new: NewJobs) -> None:
        """Insert new jobs; the values that they share are bound once for each statement."""
        shared = self._encoder.shared_columns(new)
        self._write_shared()
        values = individual_columns(new)
        start = 0
        while start < len(values):
            size = min(MAX_SIMILAR, 1 << (len(values) - start).bit_length() - 1)
            own = chain.from_iterable(values[start : start + size])
            self._connection.execute(_insert_similar(size), (*shared, *own))
            start += size
        self.add_counts(count_new(new))
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def move(self, numbers: list[int], table: str, into: str) -> None:
        """Move jobs to the archive or back, and change the counts."""
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
        """Change the stored numbers of jobs."""
        changes = [(*key, change) for key, change in counts.items() if change]
        self._connection.executemany(SQL["add_count"], changes)

    def _write_shared(self) -> None:
        shared = ((self._encoder.specs, "insert_spec"), (self._encoder.launches, "insert_launch"))
        for parts, query in shared:
            if parts.new:
                self._connection.executemany(SQL[query], parts.new)
                parts.new.clear()
            parts.trim()

    def _prepare_rewrite(self, numbers: list[int], counts: Counts) -> None:
        """Bring jobs back from the archive before they are replaced, and subtract their counts."""
        listed = _json(numbers)
        if any(number <= self._last_archived for number in numbers):
            query = SQL["states_of"].format(table="archived_jobs")
            if self._connection.execute(query, (listed,)).fetchone():
                self.move(numbers, "archived_jobs", "jobs")
        for key in self._connection.execute(SQL["states_of"].format(table="jobs"), (listed,)):
            counts[(0, *key)] -= 1

    def _set_launch(self, job_id: str, launch_number: int) -> None:
        """Set the launch of a job that is not in this batch."""
        values = (launch_number, job_number(job_id), job_id)
        for table in ("jobs", "archived_jobs"):
            if self._connection.execute(SQL["set_launch"].format(table=table), values).rowcount:
                return
        raise InternalError(f"the launch of job {job_id} came before the job itself")


@cache
def _insert_similar(count: int) -> str:
    """Return the insertion of `count` jobs: seven shared values, then four values for each."""
    return SQL["insert_similar_jobs"].format(", ".join(["(?, ?, ?, ?)"] * count))


def _json(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(numbers).decode()


class Writer:
    """Commits batches, archives old jobs and deletes expired rows."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Take over a connection; `path` is for messages."""
        self._connection = connection
        self._path = path
        self._lock = Lock()
        self._jobs = JobWriter(connection)
        self._last_event = 0
        self._seen_version: int | None = None
        self.reserve = SpaceReserve(path)
        self.reserve.renew()

    def commit(self, writes: list[Write]) -> int:
        """Write a batch; returns the sequence number of the last event so far."""
        groups = group_by_type(writes)
        with self._transaction():
            before = (self._jobs.next_number, self._last_event)
            self._write(groups)
            after = (self._jobs.next_number, self._last_event)
            if after != before:
                self._connection.execute(SQL["write_counters"], after)
        self.reserve.renew()
        return self._last_event

    def archive(self, *, ended_before_ms: int, limit: int) -> int:
        """Move jobs that ended before then to the archive; returns how many."""
        with self._transaction():
            found = self._connection.execute(
                SQL["jobs_to_archive"], (ended_before_ms, limit)
            ).fetchall()
            numbers = [number for (number,) in found]
            if numbers:
                self._jobs.move(numbers, "jobs", "archived_jobs")
        return len(numbers)

    def delete_expired(self, before: Cutoffs, *, limit: int) -> int:
        """Delete rows that are older than the cut-offs; returns how many."""
        with self._transaction():
            return delete_expired_rows(
                lambda query, values: self._connection.execute(SQL[query], values), before, limit
            )

    def reseal(self, cipher: Cipher) -> int:
        """Seal all stored secrets with the newest key; returns how many rows changed.

        Their former contents are overwritten in the file and in its log.
        """
        with self._transaction():
            self._connection.execute("PRAGMA secure_delete = ON")
            changed = reseal(cipher, self._connection.execute, self._connection.execute, "?")
        with self._lock, translate_errors(self._path):
            self._connection.execute("PRAGMA secure_delete = OFF")
            if changed:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return changed

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, translate_errors(self._path):
            self._connection.execute(SQL["begin"])
            try:
                self._refresh_counters()
                yield
                self._connection.execute(SQL["commit"])
            except BaseException as error:
                # The counters in memory may now be ahead of the database.
                self._seen_version = None
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute(SQL["rollback"])
                if isinstance(error, TypeError | ValueError | OverflowError):
                    raise InternalError(f"a row cannot be written: {error}") from error
                raise

    def _refresh_counters(self) -> None:
        """Read the counters again if another process may have changed them."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._seen_version:
            return
        counters = self._connection.execute(SQL["read_counters"]).fetchone()
        next_number, self._last_event, last_spec, last_launch, archived = counters
        self._jobs.restart(next_number, last_spec, last_launch, archived)
        self._seen_version = version

    def _write(self, groups: Groups) -> None:
        for new in groups.pop(NewJobs, ()):
            self._jobs.insert_new(new)
        if JobRow in groups or LaunchRow in groups:
            self._jobs.upsert(groups.pop(JobRow, []), groups.pop(LaunchRow, []))
        if EventRow in groups:
            chunks = history_chunks(groups.pop(EventRow), self._last_event)
            self._connection.executemany(SQL["insert_history"], chunks)
            self._last_event = chunks[-1][1]
        for kind, rows in groups.items():
            table = TABLES[kind]
            if kind in REMOVABLE:
                rows, removed = split_removals(kind, rows)  # noqa: PLW2901
                self._connection.executemany(_deletion(table), [(name,) for name in removed])
            self._connection.executemany(_insertion(table), map(table.values, rows))


@cache
def _insertion(table: Table) -> str:
    """Return the upsert of a table."""
    columns = ", ".join(f'"{name}"' for name in table.columns)
    marks = ", ".join("?" * len(table.columns))
    return f"INSERT OR REPLACE INTO {table.name} ({columns}) VALUES ({marks})"  # noqa: S608


@cache
def _deletion(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {table.key[0]} = ?"  # noqa: S608
