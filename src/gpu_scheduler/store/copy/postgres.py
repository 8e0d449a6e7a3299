"""A PostgreSQL database as one side of a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from psycopg import sql

from gpu_scheduler.store.copy.copier import Counters, Row
from gpu_scheduler.store.postgres.connection import Address, Connection, connect, read, said_plainly
from gpu_scheduler.store.postgres.schema import check
from gpu_scheduler.store.postgres.store import upgrade

COPIER = "gpu-scheduler copy"
ROWS_AT_ONCE = 5_000
_AS_OF_ONE_MOMENT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COLUMNS = """
SELECT columns.table_name, columns.column_name
FROM information_schema.columns
JOIN information_schema.tables USING (table_schema, table_name)
WHERE columns.table_schema = 'public' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER'
ORDER BY columns.table_name, ordinal_position
"""
_NEXT_AUDIT = """
SELECT setval(
    pg_get_serial_sequence('audit', 'number'), (SELECT coalesce(max(number), 0) + 1 FROM audit),
    false
)
"""


class PostgresSide:
    """A database within one transaction."""

    def __init__(self, connection: Connection, address: Address) -> None:
        """Take over a connection that is in a transaction."""
        self.name = f"the database {address}"
        self._connection = connection

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of every table that are not made from others."""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self._connection.execute(_COLUMNS):
            found[table] = (*found.get(table, ()), column)
        return found

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """All rows of a table, some at a time."""
        query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.Identifier(table),
            sql.SQL(order),
        )
        with self._connection.cursor(name=f"copy_{table}_{id(query)}") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(query)
            for row in cursor:
                yield tuple([read(value) if isinstance(value, str) else value for value in row])

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Add rows."""
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        with self._connection.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)

    def ask(self, statement: str) -> list[Row]:
        """The rows of a statement."""
        return self._connection.execute(statement.encode()).fetchall()

    def counters(self) -> Counters:
        """The numbers that it goes on with."""
        row = self._connection.execute("SELECT created_ms, next_number, last_event FROM meta")
        created_ms, next_number, last_event = row.fetchall()[0]
        return created_ms, next_number, last_event

    def set_counters(self, counters: Counters) -> None:
        """Go on with these numbers, and with those of the records."""
        self._connection.execute(
            "UPDATE meta SET created_ms = %s, next_number = %s, last_event = %s,"
            " commits = commits + 1",
            counters,
        )
        self._connection.execute(_NEXT_AUDIT)


@contextmanager
def looking_side(address: Address) -> Iterator[PostgresSide]:
    """A database to read, as of one moment; refused if it is not of the newest form."""
    with _within(address, _AS_OF_ONE_MOMENT) as (side, connection):
        check(connection, address)
        yield side


@contextmanager
def writing_side(address: Address) -> Iterator[PostgresSide]:
    """A database to copy to; it keeps all or nothing."""
    upgrade(address)
    with _within(address, "BEGIN") as (side, _):
        yield side


@contextmanager
def _within(address: Address, begin: str) -> Iterator[tuple[PostgresSide, Connection]]:
    with said_plainly(address), connect(address, COPIER) as connection:
        # A copy of much takes its time, and waits for the other side within its transaction.
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.patience_s = float("inf")
        connection.execute(begin.encode())
        try:
            yield PostgresSide(connection, address), connection
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")
