"""The store on PostgreSQL: for clusters, where several servers share one database.

Batches come in and are durable when `commit` returns. Reads come from a pool of connections that
cannot write; they see what has been committed and nothing else. `commit`, `archive` and `forget`
are for one thread. A database that goes away is met with `StoreUnavailable`, at once once it is
known, and is used again as soon as it is back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from gpu_scheduler.store.contract import Cutoffs
from gpu_scheduler.store.postgres import schema
from gpu_scheduler.store.postgres.connection import (
    Address,
    Connection,
    connect,
    rows_of,
    said_plainly,
)
from gpu_scheduler.store.postgres.pool import Link
from gpu_scheduler.store.postgres.writer import Guard, Writer
from gpu_scheduler.store.reader import NOTHING, SqlReads, Values
from gpu_scheduler.store.rows import Write
from gpu_scheduler.store.sql_files import Dialect
from gpu_scheduler.store.sqlite.files import Steps

# --- The SQL of PostgreSQL where it differs from that of SQLite.

_VALUE = re.compile(r"(?<!:):(\w+)")


class PostgresDialect(Dialect):
    """Names are lists, and the planner knows how large tables are."""

    same = "IS NOT DISTINCT FROM"
    in_names = "= ANY(:names)"

    def along(self, index: str) -> str:
        """The planner finds the index by itself."""
        del index
        return ""

    def unindexed(self, column: str) -> str:
        """The planner knows when an index is of no use."""
        return column

    def listed(self, names: Iterable[str | int]) -> Any:
        """Names or numbers as an array."""
        return list(names)


@lru_cache(maxsize=1024)
def prepared(statement: str) -> bytes:
    """A statement with its values marked as psycopg wants them."""
    return _VALUE.sub(r"%(\1)s", statement).encode()


POSTGRES = PostgresDialect("read.sql", "postgres/read.sql")


# --- All tables as they were at one moment, while somebody else goes on writing to them.
#
# What is read table by table would not fit together: a job that ended between two of them would
# hold
# devices and not be there.

LONGEST_PAUSE = "10min"
"""Between two tables; a reader that is frozen must not hold back the vacuum for ever."""


class Moment(SqlReads):
    """Reads on one connection, within one transaction that sees no later commit."""

    _dialect = POSTGRES

    def __init__(self, connection: Connection) -> None:
        """Make it with `one_moment`."""
        self._connection = connection

    def _rows(self, make: Callable[[Any], T], statement: str, values: Values = NOTHING) -> list[T]:
        return [make(row) for row in self._connection.execute(prepared(statement), values)]

    def _row(self, statement: str, values: Values = NOTHING) -> Any:
        return self._connection.execute(prepared(statement), values).fetchone()

    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        with self._connection.cursor() as cursor:
            return read(iter(cursor.execute(prepared(statement), values)))


@contextmanager
def one_moment(connection: Connection) -> Iterator[Moment]:
    """The database as it is now, for as long as the block lasts."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # Much may be made of a table before the next is read; nobody waits for who only reads.
    connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_PAUSE}'")
    try:
        yield Moment(connection)
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


# --- The store on PostgreSQL: for clusters, where several servers share one database.

T = TypeVar("T")

UPGRADER = "gpu-scheduler upgrade"


class PostgresStore(SqlReads):
    """One database. Its tables are made if they are not there, and refused if they are too new."""

    _dialect = POSTGRES

    def __init__(self, address: Address, *, steps: Steps | None = None) -> None:
        """Connect, and bring the database to the newest form."""
        self.address = address
        upgrade(address, steps)
        self._link = Link(address)
        self._writer = Writer(self._link)

    # --- writing

    @property
    def guard(self) -> Guard | None:
        """What looks, within the transaction of every commit, whether we may write at all.

        It gets the connection and raises if not; then nothing is written.
        """
        return self._writer.guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._writer.guard = guard

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch, and return the sequence number of the last event so far."""
        return self._writer.commit(writes)

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then out of the way, the oldest end first; says how many."""
        return self._writer.archive(ended_before_ms=ended_before_ms, limit=limit)

    def forget(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Drop what is old: answers, events, hours, records, environments. Says how many."""
        return self._writer.forget(before, limit=limit)

    def end_other_writers(self) -> int:
        """End the connections of all others that write here; for who has just become the leader.

        One of them may be frozen within a transaction, which would hold us up.
        """
        with said_plainly(self.address):
            return self._writer.end_others()

    def trouble(self) -> str:
        """Why the database cannot be used; empty if it can, as far as is known."""
        return self._link.trouble

    def use(self, work: Callable[[Connection], T]) -> T:
        """Read something on a connection that cannot write and that nobody else uses meanwhile."""
        return self._link.use(work)

    def at_one_moment(self, work: Callable[[SqlReads], T]) -> T:
        """Read many things that fit together, while somebody else goes on writing."""

        def within(connection: Connection) -> T:
            with one_moment(connection) as moment:
                return work(moment)

        return self._link.use(within)

    def hurry(self) -> None:
        """The server stops: a commit whose outcome is looked for says that it is not known."""
        self._link.hurry()

    def close(self) -> None:
        """Let go of all connections."""
        self._link.close()
        self._writer.close()

    # --- reading

    def _rows(self, make: Callable[[Any], T], statement: str, values: Values = NOTHING) -> list[T]:
        query = prepared(statement)
        return self._link.use(
            lambda connection: [make(row) for row in rows_of(connection.execute(query, values))]
        )

    def _row(self, statement: str, values: Values = NOTHING) -> Any:
        query = prepared(statement)
        return self._link.use(
            lambda connection: next(rows_of(connection.execute(query, values)), None)
        )

    def _scan(
        self, statement: str, values: Values, read: Callable[[Iterator[tuple[Any, ...]]], T]
    ) -> T:
        query = prepared(statement)

        def work(connection: Connection) -> T:
            with connection.cursor() as cursor:
                rows = cursor.stream(query, values)
                try:
                    return read(rows)
                finally:
                    rows.close()  # type: ignore[attr-defined]

        return self._link.use(work)


def upgrade(address: Address, steps: Steps | None = None) -> int:
    """Bring a database to the newest form; returns how many steps that took."""
    with said_plainly(address), connect(address, UPGRADER) as connection:
        return schema.upgrade(connection, address, steps)
