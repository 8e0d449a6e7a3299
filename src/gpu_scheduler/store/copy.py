"""Copying a whole store from one database to another, and consistency checks of one database.

Both endpoints must have the newest schema, and the target must be empty. All rows are copied in the
order of their keys, then read again from both endpoints and compared. The caller commits the
target, so it holds everything or nothing. The tables of servers (leadership, writers) are not
copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from gpu_scheduler.model.errors import AlreadyExists, StoreDamaged, StoreError
from gpu_scheduler.store.sql_queries import named_queries
from gpu_scheduler.store.tables import TABLES

SERVER_TABLES = frozenset({"meta", "writers", "leadership", "servers", "cluster_secrets"})
_KEYS: dict[str, tuple[str, ...]] = {
    "jobs": ("number",),
    "archived_jobs": ("number",),
    "specs": ("id",),
    "launches": ("id",),
    "job_counts": ("archived", "tenant", "user", "state"),
    "history": ("first_sequence",),
    "audit": ("number",),
} | {table.name: table.key for table in TABLES.values() if table.key}

Row = tuple[Any, ...]
Counters = tuple[int, int, int]
"""When the database was created, the next job number, and the last event."""


class Endpoint(Protocol):
    """A database inside one transaction, as source or target."""

    name: str

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of every table, without generated ones."""
        ...

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """Yield all rows of a table, from one snapshot for all tables."""
        ...

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert rows."""
        ...

    def query(self, statement: str) -> list[Row]:
        """Return the rows of a statement in SQL that every database supports."""
        ...

    def counters(self) -> Counters:
        """Return the counters of the table `meta`."""
        ...

    def set_counters(self, counters: Counters) -> None:
        """Set the counters of the table `meta`."""
        ...


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The number of rows of a table that were copied and compared."""

    table: str
    rows: int


def copy(source: Endpoint, target: Endpoint) -> list[CopiedTable]:
    """Copy everything; the caller then commits or rolls back the target."""
    tables = _tables(source, target)
    _check_empty(target, tables)
    copied = []
    for table, columns in tables.items():
        order = _order(table)
        target.write(table, columns, source.rows(table, columns, order))
        copied.append(CopiedTable(table, _compare(source, target, table, columns, order)))
    target.set_counters(source.counters())
    if target.counters() != source.counters():
        raise StoreDamaged(
            f"the counters of {target.name} differ from those of {source.name} after the copy"
        )
    return copied


def _tables(source: Endpoint, target: Endpoint) -> dict[str, tuple[str, ...]]:
    """Return the tables to copy and their columns; the target must have every table."""
    available, wanted = source.columns(), target.columns()
    missing = sorted(available.keys() - wanted.keys() - SERVER_TABLES)
    if missing:
        raise StoreError(f"{target.name} lacks the tables {', '.join(missing)} of {source.name}")
    return {
        table: columns
        for table, columns in sorted(wanted.items())
        if table in available and table not in SERVER_TABLES
    }


def _check_empty(target: Endpoint, tables: dict[str, tuple[str, ...]]) -> None:
    for table, columns in tables.items():
        if next(target.rows(table, columns[:1], _order(table)), None) is not None:
            raise AlreadyExists(
                f"{target.name} is not empty: its table {table} has rows. Copy into an empty "
                "database; nothing was changed"
            )


def _compare(
    source: Endpoint, target: Endpoint, table: str, columns: tuple[str, ...], order: str
) -> int:
    count = 0
    pairs = zip_longest(source.rows(table, columns, order), target.rows(table, columns, order))
    for original, copied in pairs:
        if original != copied:
            raise StoreDamaged(
                f"row {count + 1} of {table} differs between {source.name} and {target.name}; "
                "nothing was copied"
            )
        count += 1
    return count


def _order(table: str) -> str:
    """Return the order by key, with NULL first in every database."""
    return ", ".join(f'"{name}" IS NOT NULL, "{name}"' for name in _KEYS[table])


SIZED = ("jobs", "archived_jobs", "attempts", "nodes", "tenants", "audit")
_PROBLEMS = {
    "numbers": "job numbers are not below the next number (meta)",
    "events": "rows of history are not below the last event (meta)",
    "specs": "jobs refer to a missing row of specs",
    "launches": "jobs refer to a missing row of launches",
    "twice": "jobs are in both jobs and archived_jobs",
    "undercounted": "groups of jobs are counted wrongly in job_counts",
    "overcounted": "rows of job_counts do not match the jobs",
}


def problems(endpoint: Endpoint) -> list[str]:
    """Return the inconsistencies as sentences; empty if nothing is."""
    queries = named_queries("check.sql")
    counts = {name: len(endpoint.query(queries[name])) for name in _PROBLEMS}
    return [f"{count} {_PROBLEMS[name]}" for name, count in counts.items() if count]


def sizes(endpoint: Endpoint) -> dict[str, int]:
    """Return the number of rows of the main tables."""
    return {
        table: int(endpoint.query(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608
        for table in SIZED
    }
