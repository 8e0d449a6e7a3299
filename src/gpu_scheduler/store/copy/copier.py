"""Copying a whole store from one database to another, and comparing the two row by row.

Two sides come in, both of the newest form; the target must be empty. All rows go out, in the order
of their keys, and are then read again from both sides and compared. The target keeps everything or
nothing. What belongs to servers and not to the scheduler (who leads, who writes) stays behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from gpu_scheduler.model.errors import AlreadyExists, StoreDamaged, StoreError
from gpu_scheduler.store.sql_files import named_queries
from gpu_scheduler.store.tables import TABLES

OF_SERVERS = frozenset({"meta", "writers", "leadership", "servers", "cluster_secrets"})
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
"""When it was made, the number of the next job, and of the last event."""


class Side(Protocol):
    """One of the two databases."""

    name: str

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of every table that rows can be written to."""
        ...

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """All rows of a table, as of one moment for all tables."""
        ...

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Add rows."""
        ...

    def ask(self, statement: str) -> list[Row]:
        """The rows of a statement that every database understands."""
        ...

    def counters(self) -> Counters:
        """The numbers that it goes on with."""
        ...

    def set_counters(self, counters: Counters) -> None:
        """Go on with these numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """How many rows of a table were copied and compared."""

    table: str
    rows: int


def copy(source: Side, target: Side) -> list[Copied]:
    """Copy everything; whoever calls commits the target afterwards, or takes it back."""
    tables = _tables(source, target)
    _check_empty(target, tables)
    copied = []
    for table, columns in tables.items():
        order = _order(table)
        target.write(table, columns, source.rows(table, columns, order))
        copied.append(Copied(table, _compare(source, target, table, columns, order)))
    target.set_counters(source.counters())
    if target.counters() != source.counters():
        raise StoreDamaged(f"{target.name} does not keep the counters of {source.name}")
    return copied


def _tables(source: Side, target: Side) -> dict[str, tuple[str, ...]]:
    """Tables and the columns to write; every one of the source must have a place."""
    given, wanted = source.columns(), target.columns()
    homeless = sorted(given.keys() - wanted.keys() - OF_SERVERS)
    if homeless:
        raise StoreError(f"{target.name} has no table for {', '.join(homeless)} of {source.name}")
    return {
        table: columns
        for table, columns in sorted(wanted.items())
        if table in given and table not in OF_SERVERS
    }


def _check_empty(target: Side, tables: dict[str, tuple[str, ...]]) -> None:
    for table, columns in tables.items():
        if next(target.rows(table, columns[:1], _order(table)), None) is not None:
            raise AlreadyExists(
                f"{target.name} is not empty: its table {table} has rows. Copy into an empty "
                "database; nothing was changed"
            )


def _compare(source: Side, target: Side, table: str, columns: tuple[str, ...], order: str) -> int:
    count = 0
    pairs = zip_longest(source.rows(table, columns, order), target.rows(table, columns, order))
    for ours, theirs in pairs:
        if ours != theirs:
            raise StoreDamaged(
                f"row {count + 1} of {table} is not the same in {source.name} and {target.name}; "
                "nothing was kept"
            )
        count += 1
    return count


def _order(table: str) -> str:
    """By key; what is missing comes first, whatever the database."""
    return ", ".join(f'"{name}" IS NOT NULL, "{name}"' for name in _KEYS[table])


# --- Whether what a database holds fits together: counts, numbers, and what rows name.

SIZED = ("jobs", "archived_jobs", "attempts", "nodes", "tenants", "audit")
_FOUND = {
    "numbers": "numbers of jobs are still to be given out",
    "events": "pieces of history have numbers that are still to be given out",
    "specs": "jobs have no wishes (specs)",
    "launches": "jobs have no way to be run (launches)",
    "twice": "jobs are archived and not archived at once",
    "undercounted": "kinds of jobs are counted wrongly (job_counts)",
    "overcounted": "counts are not those of the jobs (job_counts)",
}


def problems(side: Side) -> list[str]:
    """What does not fit together, in sentences; empty if all does."""
    queries = named_queries("check.sql")
    counts = {name: len(side.ask(queries[name])) for name in _FOUND}
    return [f"{count} {_FOUND[name]}" for name, count in counts.items() if count]


def sizes(side: Side) -> dict[str, int]:
    """How many rows the tables have that people ask for."""
    return {
        table: int(side.ask(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608
        for table in SIZED
    }
