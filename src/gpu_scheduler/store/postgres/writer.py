"""The writer for PostgreSQL: batches of rows come in, and each is written in one transaction.

Every transaction locks the row of `meta`, so two servers never write at once, and counts itself in
the row of this writer in `writers`. When the connection is lost during COMMIT, the outcome is
unknown: the writer then reads that row on a new connection, for as long as it takes, before it
returns. One thread at a time: a lock makes concurrent calls safe, not fast.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any
from uuid import uuid4

import psycopg
import structlog
from psycopg import Cursor, pq

from gpu_scheduler.model.errors import (
    InternalError,
    OutcomeUnknown,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
)
from gpu_scheduler.store.codec import LAUNCH, history_chunks
from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.job_columns import (
    BASE_COLUMNS,
    PROGRESS_COLUMNS,
    Counts,
    JobEncoder,
    count_jobs,
    count_new,
    individual_columns,
    job_number,
    progress_columns,
)
from gpu_scheduler.store.postgres import migrate
from gpu_scheduler.store.postgres.connection import (
    PROBE_INTERVAL_S,
    Connection,
    ConnectionPool,
    connect,
    decoded_rows,
    escape_for_copy,
    is_broken,
    is_unavailable,
    to_store_error,
)
from gpu_scheduler.store.postgres.migrate import Types
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.sealing import Cipher, reseal
from gpu_scheduler.store.sql_queries import delete_expired_rows, named_queries
from gpu_scheduler.store.tables import (
    REMOVABLE,
    TABLES,
    Groups,
    Table,
    group_by_type,
    split_removals,
)

WRITER = "gpu-scheduler writer"
SQL = {name: text.encode() for name, text in named_queries("postgres/write.sql").items()}
COPY_THRESHOLD = 100
"""From so many new jobs on, COPY is faster; the writer has to wait for its end."""
COPY_LINES_AT_ONCE = 5_000
NULL = "\\N"
log = structlog.get_logger("database")

Fence = Callable[[Connection], None]
"""Checks inside the transaction whether this server may write, and raises if not."""


Insertions = dict[str, bytes]
"""The upsert of each table by name; each column of a batch is one array parameter."""


def _insertions(types: Types) -> Insertions:
    """Build the upserts for a database whose columns have these types."""
    tables = [(table.name, table.key, table.columns) for table in TABLES.values()]
    tables.append(("jobs", ("number",), BASE_COLUMNS + PROGRESS_COLUMNS))
    return {
        name: _insertion(name, key, columns, types[name]).encode() for name, key, columns in tables
    }


def arrays(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return rows as one list for each column."""
    return [list(column) for column in zip(*rows, strict=True)]


def _insertion(
    table: str, key: tuple[str, ...], columns: tuple[str, ...], types: dict[str, str]
) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f"%b::{types[name]}[]" for name in columns)
    statement = f"INSERT INTO {table} ({names}) SELECT * FROM unnest({values})"  # noqa: S608
    if not key:
        return statement
    updated = {name: f'excluded."{name}"' for name in columns if name not in key}
    if table == "jobs":
        # The launch of a job is written once; later writes of the job without a launch keep it.
        updated["launch"] = "coalesce(excluded.launch, jobs.launch)"
    changes = ", ".join(f'"{name}" = {value}' for name, value in updated.items())
    keys = ", ".join(f'"{name}"' for name in key)
    return f"{statement} ON CONFLICT ({keys}) DO UPDATE SET {changes}"


@cache
def _deletion(table: Table) -> bytes:
    """Return the deletion by key; its parameter is an array."""
    return f'DELETE FROM {table.name} WHERE "{table.key[0]}" = ANY(%b::text[])'.encode()  # noqa: S608


class JobWriter:
    """Writes jobs and launches, and keeps `job_counts`, inside a transaction of the caller.

    It waits for no result between its statements, so a batch of any size costs few round trips.
    Call `restart` whenever its counters may differ from the database.
    """

    def __init__(self) -> None:
        """Start without counters: `restart` comes before the first write."""
        self._encoder = JobEncoder()
        self.next_number = 1
        self._last_archived = 0
        self._set_launches: list[tuple[str, Cursor[Any]]] = []

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Set the counters to those of the database."""
        self.next_number = next_number
        self._last_archived = archived
        self._encoder.restart(last_spec, last_launch)
        self._set_launches.clear()

    def copy_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert many new jobs with COPY, which cannot run in a pipeline."""
        common = self._encoder.shared_columns(new)
        self._write_shared(connection)
        tenant, user, priority, gpu_milli, submit_ms, spec, launch = common
        owner = f"{escape_for_copy(tenant)}\t{escape_for_copy(user)}"
        rest = f"{owner}\t{priority}\t{gpu_milli}\t{submit_ms}\t{spec}\t{launch or NULL}\n"
        lines = [
            f"{number}\t{escape_for_copy(name)}\t{escape_for_copy(command)}\t{escape_for_copy(life)}\t{rest}"
            for number, name, command, life in individual_columns(new)
        ]
        with connection.cursor() as cursor, cursor.copy(SQL["copy_new_jobs"]) as copy:
            for start in range(0, len(lines), COPY_LINES_AT_ONCE):
                copy.write("".join(lines[start : start + COPY_LINES_AT_ONCE]))
        self._count_new(connection, new)

    def insert_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert a few new jobs."""
        common = self._encoder.shared_columns(new)
        self._write_shared(connection)
        names = ("tenant", "user", "priority", "gpu_milli", "submit_ms", "spec", "launch")
        values: dict[str, Any] = dict(zip(names, common, strict=True))
        own = ("numbers", "names", "commands", "lives")
        values |= dict(zip(own, arrays(individual_columns(new)), strict=True))
        connection.execute(SQL["insert_new_jobs"], values)
        self._count_new(connection, new)

    def upsert(
        self,
        connection: Connection,
        insertion: bytes,
        rows: list[JobRow],
        launch_rows: list[LaunchRow],
    ) -> None:
        """Insert or replace jobs; of several rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        known = [number for number in latest if number < self.next_number]
        back = [number for number in known if number <= self._last_archived]
        if back:
            self.move(connection, back, "archived_jobs", "jobs")
        self.add_counts(connection, count_jobs(latest.values()), known)
        values = []
        for row in latest.values():
            fresh = self._encoder.base_columns(row, launches.pop(row.job.id, None))
            values.append((*fresh[:-1], fresh[-1] or None, *progress_columns(row)))
        late = [
            (self._encoder.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
        self._write_shared(connection)
        if values:
            connection.execute(insertion, arrays(values))
            self.next_number = max(self.next_number, max(latest) + 1)
        for number, job_id in late:
            given = {"launch": number, "number": job_number(job_id), "job_id": job_id}
            self._set_launches.append((job_id, connection.execute(SQL["set_launch"], given)))

    def check_launches(self) -> None:
        """Raise if a launch was written for a job that does not exist."""
        found, self._set_launches = self._set_launches, []
        for job_id, cursor in found:
            row = cursor.fetchone()
            if row is None or not row[0]:
                raise InternalError(f"the launch of job {job_id} came before the job itself")

    def move(self, connection: Connection, numbers: list[int], table: str, into: str) -> None:
        """Move jobs to the archive or back, and change the counts."""
        archived = int(into == "archived_jobs")
        shift = SQL["shift_counts"].replace(b"{table}", table.encode())
        connection.execute(shift, {"into": archived, "numbers": numbers})
        move = (
            SQL["move_jobs"].replace(b"{table}", table.encode()).replace(b"{into}", into.encode())
        )
        connection.execute(move, (numbers,))
        if archived:
            self._last_archived = max(self._last_archived, *numbers)

    def add_counts(self, connection: Connection, counts: Counts, known: list[int]) -> None:
        """Add counts of jobs, and subtract those of jobs that are about to be replaced."""
        changes = [(*key, change) for key, change in counts.items() if change]
        if not changes and not known:
            return
        names = ("archived", "tenants", "users", "states", "jobs")
        columns = arrays(changes) if changes else [[] for _ in names]
        values = dict(zip(names, columns, strict=True)) | {"known": known}
        connection.execute(SQL["add_counts"], values)

    def _count_new(self, connection: Connection, new: NewJobs) -> None:
        self.add_counts(connection, count_new(new), [])
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def _write_shared(self, connection: Connection) -> None:
        specs, launches = self._encoder.specs, self._encoder.launches
        if specs.new:
            connection.execute(SQL["insert_specs"], arrays(specs.new))
            specs.new.clear()
        if launches.new:
            rows = [(number, text, *_indexed_fields(text)) for number, text in launches.new]
            connection.execute(SQL["insert_launches"], arrays(rows))
            launches.new.clear()
        specs.trim()
        launches.trim()


def _indexed_fields(launch: str) -> tuple[str | None, str | None]:
    """Return the environment and the sweep of a launch; both have columns with an index."""
    found = LAUNCH.decode(launch)
    return found["captured"] or None, found["sweep"] or None


class Writer:
    """Commits batches, archives old jobs and deletes expired rows."""

    def __init__(self, pool: ConnectionPool) -> None:
        """Connect at the first write."""
        self.fence: Fence | None = None
        self._pool = pool
        self._id = str(uuid4())
        self._name = f"{WRITER} {self._id[:8]}"
        self._lock = Lock()
        self._connection: Connection | None = None
        self._insertions: Insertions = {}
        self._jobs = JobWriter()
        self._last_event = 0
        self._own_commits = 0
        self._seen_commits: int | None = None

    def commit(self, writes: list[Write]) -> int:
        """Write a batch; returns the sequence number of the last event so far."""
        groups = group_by_type(writes)
        with self._transaction() as connection:
            new = groups.pop(NewJobs, [])
            for one in new:
                if len(one.jobs) >= COPY_THRESHOLD:
                    self._jobs.copy_new(connection, one)
            with connection.pipeline():
                for one in new:
                    if len(one.jobs) < COPY_THRESHOLD:
                        self._jobs.insert_new(connection, one)
                self._write(connection, groups)
            self._jobs.check_launches()
        return self._last_event

    def archive(self, *, ended_before_ms: int, limit: int) -> int:
        """Move jobs that ended before then to the archive; returns how many."""
        with self._transaction() as connection:
            found = connection.execute(SQL["jobs_to_archive"], (ended_before_ms, limit)).fetchall()
            numbers = [number for (number,) in found]
            if numbers:
                self._jobs.move(connection, numbers, "jobs", "archived_jobs")
        return len(numbers)

    def delete_expired(self, before: Cutoffs, *, limit: int) -> int:
        """Delete rows that are older than the cut-offs; returns how many."""
        with self._transaction() as connection:
            deleted = delete_expired_rows(
                lambda query, values: connection.execute(SQL[query], values), before, limit
            )
            connection.execute(SQL["delete_old_writers"], (self._id,))
        return deleted

    def reseal(self, cipher: Cipher) -> int:
        """Seal all stored secrets with the newest key; returns how many rows changed."""
        with self._transaction() as connection:
            return reseal(
                cipher,
                lambda statement: decoded_rows(connection.execute(statement.encode())),
                lambda statement, values: connection.execute(statement.encode(), values),
                "%s",
            )

    def end_other_writers(self) -> int:
        """Close the connections of all other writers to this database; returns how many."""
        with self._lock:
            connection = self._connected()
            row = connection.execute(
                SQL["end_other_writers"], (f"{WRITER}%", self._name)
            ).fetchone()
            return int(row[0]) if row else 0

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock:
            self._pool.check_available()
            connection = self._begin()
            try:
                yield connection
                self._count_commit(connection)
            except BaseException as error:
                self._roll_back(error)
                raise
            self._commit(connection)

    def _begin(self) -> Connection:
        """Begin a transaction that holds the lock of all writers; reconnects once if needed."""
        try:
            connection = self._connected()
            try:
                self._begin_on(connection)
            except psycopg.Error:
                if not is_broken(connection):
                    raise
                # Nothing was written yet, so a connection that broke meanwhile can be replaced.
                self._disconnect()
                connection = self._connected()
                self._begin_on(connection)
        except BaseException as error:
            self._roll_back(error)
            raise
        return connection

    def _begin_on(self, connection: Connection) -> None:
        connection.execute("BEGIN")
        if self.fence is not None:
            self.fence(connection)
        row = connection.execute(SQL["lock"]).fetchone()
        if row is None:
            raise InternalError("the table meta has no row; restore a backup")
        commits, next_number, last_event = row
        if commits != self._seen_commits:
            # Another server has written, or the outcome of our own last commit is unknown.
            counters = connection.execute(SQL["read_counters"]).fetchone()
            assert counters is not None  # noqa: S101 - it selects without a table
            self._jobs.restart(next_number, *counters)
            self._seen_commits = commits
        self._last_event = last_event

    def _count_commit(self, connection: Connection) -> None:
        """Write the counters, and count this commit in the row of this writer."""
        values = (self._jobs.next_number, self._last_event)
        with connection.pipeline():
            connection.execute(SQL["write_counters"], values)
            marked = connection.execute(SQL["mark_commit"], (self._own_commits + 1, self._id))
        if not marked.rowcount:
            # Our row was deleted because this writer was idle for long; without the row, the
            # outcome of this commit could not be looked up.
            connection.execute(SQL["register_writer"], (self._id, _process_name()))
            connection.execute(SQL["mark_commit"], (self._own_commits + 1, self._id))

    def _commit(self, connection: Connection) -> None:
        self._own_commits += 1
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            self._seen_commits = None
            if not is_broken(connection):
                raise to_store_error(error, self._pool.address) from error
            self._disconnect()
            log.warning("connection lost during a commit; looking up its outcome")
            if not self._was_committed(error):
                raise to_store_error(error, self._pool.address) from error
            log.info("the commit succeeded")
            return
        if self._seen_commits is not None:
            self._seen_commits += 1

    def _was_committed(self, error: psycopg.Error) -> bool:
        """Look up the outcome of the last commit, until it is known."""
        self._pool.mark_unavailable(str(to_store_error(error, self._pool.address)))
        while True:
            try:
                connection = self._connected()
                row = connection.execute(SQL["last_commit"], (self._id,)).fetchone()
            except (psycopg.Error, SchedulerError) as failure:
                self._disconnect()
                if isinstance(failure, StoreTooNew | StoreDamaged):
                    raise self._outcome_unknown(str(failure)) from failure
                if self._pool.pause(PROBE_INTERVAL_S):
                    raise self._outcome_unknown("the server is stopping") from failure
            else:
                return row is not None and row[0] >= self._own_commits

    def _outcome_unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the connection to the database {self._pool.address} was lost during a commit, and "
            f"its outcome cannot be looked up: {why}. Once the database is available, repeat the "
            "request with the same Idempotency-Key, or check whether it took effect"
        )

    def _roll_back(self, error: BaseException) -> None:
        """Undo the transaction; the counters in memory may now be ahead of the database."""
        self._seen_commits = None
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                    connection.execute("ROLLBACK")
            if is_broken(connection):
                self._disconnect()
        if isinstance(error, psycopg.Error):
            translated = to_store_error(error, self._pool.address)
            if is_unavailable(error) and (self._connection is None or self._connection.closed):
                self._pool.mark_unavailable(str(translated))
            raise translated from error
        if isinstance(error, TypeError | ValueError | OverflowError):
            raise InternalError(f"a row cannot be written: {error}") from error

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = connect(self._pool.address, self._name)
        try:
            connection.execute(SQL["be_durable"])
            migrate.check(connection, self._pool.address)
            # First, because the next statements would wait for the locks of such a connection.
            connection.execute(SQL["end_lost_connections"], (self._name,))
            connection.execute(SQL["register_writer"], (self._id, _process_name()))
            self._insertions = _insertions(migrate.column_types(connection))
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

    def _write(self, connection: Connection, groups: Groups) -> None:
        if JobRow in groups or LaunchRow in groups:
            rows, launches = groups.pop(JobRow, []), groups.pop(LaunchRow, [])
            self._jobs.upsert(connection, self._insertions["jobs"], rows, launches)
        if EventRow in groups:
            chunks = history_chunks(groups.pop(EventRow), self._last_event)
            connection.execute(SQL["insert_history"], arrays(chunks))
            self._last_event = chunks[-1][1]
        for kind, rows in groups.items():
            table = TABLES[kind]
            if kind in REMOVABLE:
                rows, removed = split_removals(kind, rows)  # noqa: PLW2901
                if removed:
                    connection.execute(_deletion(table), (removed,))
            if values := table.latest(rows):
                connection.execute(self._insertions[table.name], arrays(values))


def _process_name() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"
