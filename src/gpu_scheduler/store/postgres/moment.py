"""All tables as they were at one moment, while somebody else goes on writing to them.

What is read table by table would not fit together: a job that ended between two of them would hold
devices and not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gpu_scheduler.store.postgres.connection import Connection
from gpu_scheduler.store.postgres.dialect import POSTGRES, prepared
from gpu_scheduler.store.reading import NOTHING, SqlReads, Values

T = TypeVar("T")
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
