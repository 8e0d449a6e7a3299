"""A PostgreSQL database as source or target of a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from psycopg import sql

from gpu_scheduler.store.copy import Counters, Row
from gpu_scheduler.store.postgres import DatabaseAddress
from gpu_scheduler.store.postgres.connection import (
    Connection,
    connect,
    translate_errors,
    unescape_text,
)
from gpu_scheduler.store.postgres.migrate import SQL, check
from gpu_scheduler.store.postgres.store import upgrade

COPIER = "gpu-scheduler copy"
ROWS_AT_ONCE = 5_000
_BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresEndpoint:
    """A database inside one transaction."""

    def __init__(self, connection: Connection, address: DatabaseAddress) -> None:
        """Take over a connection inside a transaction."""
        self.name = f"the database {address}"
        self._connection = connection
        self._cursors = count()

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of every table, without generated ones."""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self._connection.execute(SQL["columns_to_copy"]):
            found[table] = (*found.get(table, ()), column)
        return found

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """Yield all rows of a table; a server-side cursor fetches some at a time."""
        query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.Identifier(table),
            sql.SQL(order),
        )
        with self._connection.cursor(name=f"copy_{table}_{next(self._cursors)}") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(query)
            for row in cursor:
                yield tuple(
                    [unescape_text(value) if isinstance(value, str) else value for value in row]
                )

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert rows."""
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with self._connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)

    def query(self, statement: str) -> list[Row]:
        """Return the rows of a statement."""
        return self._connection.execute(statement.encode()).fetchall()

    def counters(self) -> Counters:
        """Return the counters of the table `meta`."""
        row = self._connection.execute("SELECT created_ms, next_number, last_event FROM meta")
        created_ms, next_number, last_event = row.fetchall()[0]
        return created_ms, next_number, last_event

    def set_counters(self, counters: Counters) -> None:
        """Set the counters of the table `meta`, and the sequence of the audit log."""
        self._connection.execute(
            "UPDATE meta SET created_ms = %s, next_number = %s, last_event = %s,"
            " commits = commits + 1",
            counters,
        )
        self._connection.execute(SQL["continue_audit_numbers"])


@contextmanager
def open_source(address: DatabaseAddress) -> Iterator[PostgresEndpoint]:
    """Open a consistent snapshot of a database; raises unless it has the newest schema."""
    with _transaction(address, _BEGIN_SNAPSHOT) as (endpoint, connection):
        check(connection, address)
        yield endpoint


@contextmanager
def open_target(address: DatabaseAddress) -> Iterator[PostgresEndpoint]:
    """Open a database to copy to; all is committed at the end, or nothing."""
    upgrade(address)
    with _transaction(address, "BEGIN") as (endpoint, _):
        yield endpoint


@contextmanager
def _transaction(
    address: DatabaseAddress, begin: str
) -> Iterator[tuple[PostgresEndpoint, Connection]]:
    with translate_errors(address), connect(address, COPIER) as connection:
        # A large copy takes long, and is idle in its transaction while the other side works.
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.silence_limit_s = float("inf")
        connection.execute(begin.encode())
        try:
            yield PostgresEndpoint(connection, address), connection
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")
