"""Statements of many rows at once, made from the descriptions of tables.

Each column of a batch travels as one array, so a batch of any size is one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_scheduler.store.job_values import FRESH_COLUMNS, LATER_COLUMNS
from gpu_scheduler.store.postgres.schema import Types
from gpu_scheduler.store.tables import TABLES, Table

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
