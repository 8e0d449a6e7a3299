"""The store on PostgreSQL: for clusters, where several servers share one database.

Batches come in and are durable when `commit` returns. Reads use a pool of read-only connections and
see only committed rows. `commit`, `archive` and `delete_expired` are for one thread. While the
database is unavailable, every call raises `StoreUnavailable`; the store recovers by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.postgres import DatabaseAddress, migrate
from gpu_scheduler.store.postgres.connection import (
    Connection,
    ConnectionPool,
    connect,
    decoded_rows,
    translate_errors,
)
from gpu_scheduler.store.postgres.writer import Fence, Writer
from gpu_scheduler.store.rows import Write
from gpu_scheduler.store.sealing import Cipher, sealed_key_ids
from gpu_scheduler.store.sql_queries import Dialect, Migrations, migrations
from gpu_scheduler.store.sql_reader import NO_VALUES, SqlReader, Values

T = TypeVar("T")

MIGRATOR = "gpu-scheduler upgrade"
MAX_SNAPSHOT_PAUSE = "10min"
"""Between two reads in a snapshot; a hung reader must not hold back the vacuum for longer."""
_PARAMETER = re.compile(r"(?<!:):(\w+)")


class PostgresDialect(Dialect):
    """PostgreSQL where it differs from SQLite: arrays, and a planner that knows table sizes."""

    null_safe_equal = "IS NOT DISTINCT FROM"
    in_names = "= ANY(:names)"

    def index_hint(self, index: str) -> str:
        """Return nothing: the planner finds the index by itself."""
        del index
        return ""

    def unindexed(self, column: str) -> str:
        """Return the column: the planner knows when an index does not help."""
        return column

    def list_value(self, names: Iterable[str | int]) -> Any:
        """Return names or numbers as an array."""
        return list(names)


@lru_cache(maxsize=1024)
def to_psycopg(statement: str) -> bytes:
    """Return a statement with its parameters in psycopg's notation."""
    return _PARAMETER.sub(r"%(\1)s", statement).encode()


def _fetch(connection: Connection, statement: str, values: Values) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a statement with their original texts."""
    return decoded_rows(connection.execute(to_psycopg(statement), values))


POSTGRES = PostgresDialect("read.sql", "postgres/read.sql")


class Snapshot(SqlReader):
    """Reads in one transaction that sees no later commit, so that tables are consistent.

    Without it, a job that ends between two reads could hold devices and be missing itself.
    """

    _dialect = POSTGRES

    def __init__(self, connection: Connection) -> None:
        """Use `snapshot_of` to make one."""
        self._connection = connection

    def _rows(
        self, decode: Callable[[Any], T], statement: str, values: Values = NO_VALUES
    ) -> list[T]:
        return [decode(row) for row in _fetch(self._connection, statement, values)]

    def _row(self, statement: str, values: Values = NO_VALUES) -> Any:
        return next(_fetch(self._connection, statement, values), None)

    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        with self._connection.cursor() as cursor:
            return read(iter(cursor.execute(to_psycopg(statement), values)))


@contextmanager
def snapshot_of(connection: Connection) -> Iterator[Snapshot]:
    """Begin a snapshot of the database, for as long as the block lasts."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # Processing one table can take long before the next is read; a reader blocks no other session.
    connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_SNAPSHOT_PAUSE}'")
    try:
        yield Snapshot(connection)
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


class PostgresStore(SqlReader):
    """One database. Missing tables are created; a newer schema is rejected."""

    _dialect = POSTGRES

    def __init__(self, address: DatabaseAddress, *, steps: Migrations | None = None) -> None:
        """Connect, and migrate the database to the newest schema."""
        self.address = address
        upgrade(address, steps)
        self._pool = ConnectionPool(address)
        self._writer = Writer(self._pool)

    @property
    def fence(self) -> Fence | None:
        """The check that runs inside the transaction of every commit.

        It receives the connection, and raises if this server may not write; then nothing is
        written.
        """
        return self._writer.fence

    @fence.setter
    def fence(self, fence: Fence | None) -> None:
        self._writer.fence = fence

    def commit(self, writes: list[Write]) -> int:
        """Write a batch, and return the sequence number of the last event so far."""
        return self._writer.commit(self.cipher.seal_writes(writes))

    def reseal(self, cipher: Cipher) -> int:
        """Seal all stored secrets with the newest key; returns how many rows changed."""
        with translate_errors(self.address):
            return self._writer.reseal(cipher)

    def sealed_key_ids(self) -> set[str]:
        """Return the ids of the keys with which secrets are sealed."""
        return sealed_key_ids(lambda statement: self._rows(tuple, statement))

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then to the archive; returns how many."""
        return self._writer.archive(ended_before_ms=ended_before_ms, limit=limit)

    def delete_expired(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Delete rows that are older than the cut-offs; returns how many."""
        return self._writer.delete_expired(before, limit=limit)

    def end_other_writers(self) -> int:
        """Close the connections of all other writers; a new leader calls this.

        One of them may hang inside a transaction, which would block the leader's commits.
        """
        with translate_errors(self.address):
            return self._writer.end_other_writers()

    def unavailable_reason(self) -> str:
        """Why the database cannot be used; empty if it can, as far as is known."""
        return self._pool.unavailable_reason

    def full_reason(self) -> str:
        """Return nothing: the disk of the database is not known here."""
        return ""

    def use(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with a read-only connection that no other thread uses meanwhile."""
        return self._pool.use(work)

    def read_snapshot(self, work: Callable[[SqlReader], T]) -> T:
        """Call `work` with a consistent snapshot, while another server goes on writing."""

        def within(connection: Connection) -> T:
            with snapshot_of(connection) as snapshot:
                snapshot.cipher = self.cipher
                return work(snapshot)

        return self._pool.use(within)

    def stop_waiting(self) -> None:
        """Let a look-up of a commit's outcome end with `OutcomeUnknown`: the server stops."""
        self._pool.stop_waiting()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self._writer.close()

    def _rows(
        self, decode: Callable[[Any], T], statement: str, values: Values = NO_VALUES
    ) -> list[T]:
        return self._pool.use(
            lambda connection: [decode(row) for row in _fetch(connection, statement, values)]
        )

    def _row(self, statement: str, values: Values = NO_VALUES) -> Any:
        return self._pool.use(lambda connection: next(_fetch(connection, statement, values), None))

    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        def work(connection: Connection) -> T:
            with connection.cursor() as cursor:
                rows = cursor.stream(to_psycopg(statement), values)
                try:
                    return read(rows)
                finally:
                    rows.close()  # type: ignore[attr-defined]

        return self._pool.use(work)


def upgrade(address: DatabaseAddress, steps: Migrations | None = None) -> int:
    """Apply the missing migrations to a database; returns how many there were."""
    with translate_errors(address), connect(address, MIGRATOR) as connection:
        return migrate.upgrade(connection, address, steps or migrations("postgres"))
