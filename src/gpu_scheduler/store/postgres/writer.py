"""The one that writes to PostgreSQL: batches of rows come in, one transaction each goes out.

Every transaction holds the row of `meta`, so two servers never write at once, and changes the row
of this writer in `writers`. When the connection is lost while COMMIT is under way, nobody knows
whether it was done: then that row is looked up on a new connection, for as long as it takes, before
anything is said. It must never be used by two threads at once; a lock makes that safe, not fast.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from gpu_scheduler.store.codec import LAUNCH, encode_events, values_of_events
from gpu_scheduler.store.contract import Cutoffs
from gpu_scheduler.store.job_values import (
    FRESH_COLUMNS,
    LATER_COLUMNS,
    Counts,
    JobValues,
    count,
    count_new,
    later_values,
    number_in,
    own_values,
)
from gpu_scheduler.store.postgres import schema
from gpu_scheduler.store.postgres.connection import (
    Connection,
    connect,
    copied,
    is_away,
    is_broken,
    of_postgres,
)
from gpu_scheduler.store.postgres.pool import PROBE_S, Link
from gpu_scheduler.store.postgres.schema import Types
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.sql_files import named_queries
from gpu_scheduler.store.sqlite.writer import MOST_EVENTS
from gpu_scheduler.store.tables import REMOVABLE, TABLES, Groups, Table, divided, grouped

# --- Statements of many rows at once, made from the descriptions of tables.
#
# Each column of a batch travels as one array, so a batch of any size is one statement.

JOBS = Table(
    "jobs",
    key=("number",),
    columns=FRESH_COLUMNS + LATER_COLUMNS,
    values=tuple,
)


class Statements:
    """Insertions and deletions by table, for a database whose columns have these types."""

    def __init__(self, types: Types) -> None:
        """Make them once."""
        tables = (JOBS, *TABLES.values())
        self._insertions = {
            table.name: _insertion(table, types[table.name]).encode() for table in tables
        }
        self._deletions = {
            table.name: _deletion(table).encode() for table in tables if len(table.key) == 1
        }

    def insertion(self, table: Table) -> bytes:
        """Insert rows, or replace those with the same keys; its values are arrays."""
        return self._insertions[table.name]

    def deletion(self, table: Table) -> bytes:
        """Delete the rows with these keys; its value is an array."""
        return self._deletions[table.name]


def arrays(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """The columns of rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def _insertion(table: Table, types: dict[str, str]) -> str:
    columns = ", ".join(_quoted(name) for name in table.columns)
    values = ", ".join(f"%b::{types[name]}[]" for name in table.columns)
    statement = f"INSERT INTO {table.name} ({columns}) SELECT * FROM unnest({values})"  # noqa: S608
    if not table.key:
        return statement
    key = ", ".join(_quoted(name) for name in table.key)
    changes = ", ".join(
        f"{_quoted(name)} = {_kept(table, name)}" for name in table.columns if name not in table.key
    )
    return f"{statement} ON CONFLICT ({key}) DO UPDATE SET {changes}"


def _kept(table: Table, name: str) -> str:
    """How a job is run is written once, and other writes of the job leave it alone."""
    if table is JOBS and name == "launch":
        return "coalesce(excluded.launch, jobs.launch)"
    return f"excluded.{_quoted(name)}"


def _deletion(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {_quoted(table.key[0])} = ANY(%b::text[])"  # noqa: S608


def _quoted(name: str) -> str:
    return f'"{name}"'


# --- Writing jobs to PostgreSQL: many new ones by COPY, all others by one statement for a batch.
#
# Job rows and launches come in, statements go to the connection, inside a transaction of the
# caller.
# Nothing is asked in between, so that a batch costs few round trips however large it is.

SQL = {name: text.encode() for name, text in named_queries("postgres/write.sql").items()}
LEAST_COPIED = 100
"""So many new jobs are worth a COPY, which has to be waited for."""
COPIED_AT_ONCE = 5_000
NULL = "\\N"


class JobWriter:
    """Keeps jobs and launches, and counts them. `restart` whenever its numbers may be wrong."""

    def __init__(self) -> None:
        """Without any knowledge yet."""
        self._values = JobValues()
        self.next_number = 1
        self._last_archived = 0
        self._set_launches: list[tuple[str, Cursor[Any]]] = []

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Begin with what the database says."""
        self.next_number = next_number
        self._last_archived = archived
        self._values.restart(last_spec, last_launch)
        self._set_launches.clear()

    def copy_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert many jobs that nobody has written before; not within a pipeline."""
        common = self._values.common(new)
        self._write_shared(connection)
        tenant, user, priority, gpu_milli, submit_ms, spec, launch = common
        same = f"{copied(tenant)}\t{copied(user)}\t{priority}\t{gpu_milli}\t{submit_ms}\t{spec}\t"
        same += f"{launch or NULL}\n"
        lines = [
            f"{number}\t{copied(name)}\t{copied(command)}\t{copied(life)}\t{same}"
            for number, name, command, life in own_values(new)
        ]
        with connection.cursor() as cursor, cursor.copy(SQL["copy_new_jobs"]) as copy:
            for start in range(0, len(lines), COPIED_AT_ONCE):
                copy.write("".join(lines[start : start + COPIED_AT_ONCE]))
        self._have_new(connection, new)

    def keep_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert a few jobs that nobody has written before."""
        common = self._values.common(new)
        self._write_shared(connection)
        names = ("tenant", "user", "priority", "gpu_milli", "submit_ms", "spec", "launch")
        values: dict[str, Any] = dict(zip(names, common, strict=True))
        own = ("numbers", "names", "commands", "lives")
        values |= dict(zip(own, arrays(own_values(new)), strict=True))
        connection.execute(SQL["insert_new_jobs"], values)
        self._have_new(connection, new)

    def keep(
        self,
        connection: Connection,
        statements: Statements,
        rows: list[JobRow],
        launch_rows: list[LaunchRow],
    ) -> None:
        """Insert or replace; of rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        known = [number for number in latest if number < self.next_number]
        back = [number for number in known if number <= self._last_archived]
        if back:
            self.move(connection, back, "archived_jobs", "jobs")
        counts: Counts = Counter()
        count(latest.values(), counts)
        self.add_counts(connection, counts, known)
        values = []
        for row in latest.values():
            fresh = self._values.fresh(row, launches.pop(row.job.id, None))
            values.append((*fresh[:-1], fresh[-1] or None, *later_values(row)))
        late = [
            (self._values.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
        self._write_shared(connection)
        if values:
            connection.execute(statements.insertion(JOBS), arrays(values))
            self.next_number = max(self.next_number, max(latest) + 1)
        for number, job_id in late:
            given = {"launch": number, "number": number_in(job_id), "job_id": job_id}
            self._set_launches.append((job_id, connection.execute(SQL["set_launch"], given)))

    def check(self) -> None:
        """After the statements were done: every launch has found its job."""
        found, self._set_launches = self._set_launches, []
        for job_id, cursor in found:
            row = cursor.fetchone()
            if row is None or not row[0]:
                raise InternalError(f"the launch of job {job_id} came before the job itself")

    def move(self, connection: Connection, numbers: list[int], table: str, into: str) -> None:
        """Move jobs between the kept and the archived ones, and count them there."""
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
        """Change the kept numbers of jobs: some more, and those that are known go out."""
        changes = [(*key, change) for key, change in counts.items() if change]
        if not changes and not known:
            return
        names = ("archived", "tenants", "users", "states", "jobs")
        columns = arrays(changes) if changes else [[] for _ in names]
        values = dict(zip(names, columns, strict=True)) | {"known": known}
        connection.execute(SQL["add_counts"], values)

    def _have_new(self, connection: Connection, new: NewJobs) -> None:
        counts: Counts = Counter()
        count_new(new, counts)
        self.add_counts(connection, counts, [])
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def _write_shared(self, connection: Connection) -> None:
        specs, launches = self._values.specs, self._values.launches
        if specs.new:
            connection.execute(SQL["insert_specs"], arrays(specs.new))
            specs.new.clear()
        if launches.new:
            rows = [(number, text, *_named_in(text)) for number, text in launches.new]
            connection.execute(SQL["insert_launches"], arrays(rows))
            launches.new.clear()
        specs.trim()
        launches.trim()


def _named_in(launch: str) -> tuple[str | None, str | None]:
    """The environment and the sweep that a launch names, by which it is looked for."""
    found = LAUNCH.decode(launch)
    return found["captured"] or None, found["sweep"] or None


# --- The one that writes to PostgreSQL: batches of rows come in, one transaction each goes out.

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
