"""Named SQL queries and migrations from the `.sql` files of the folder `sql`.

A line `-- name: x` begins the query `x`, which ends where the next one begins. Names in braces are
filled in with fixed parts by `Dialect` or by the caller; values are always bound as parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

import msgspec

from gpu_scheduler.store.codec import expired_history
from gpu_scheduler.store.interface import Cutoffs

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)

Migrations = list[tuple[int, str]]
"""The version that each migration leads to, and its script."""


def named_queries(file: str) -> dict[str, str]:
    """Return all queries of a file by name, without their comments."""
    text = (files("gpu_scheduler.store") / "sql" / file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {
        name: _COMMENT.sub("", query).strip()
        for name, query in zip(parts[::2], parts[1::2], strict=True)
    }


def migrations(database: str = "") -> Migrations:
    """Return the migrations of SQLite, or of the named database, in order."""
    folder = files("gpu_scheduler.store") / "sql" / database / "migrations"
    steps = [
        (int(step.name.partition("_")[0]), step.read_text(encoding="utf-8"))
        for step in folder.iterdir()
        if step.name.endswith(".sql")
    ]
    return sorted(steps)


class Dialect:
    """The queries by name, and the pieces of SQL that differ between databases; here for SQLite."""

    null_safe_equal = "IS"
    """Compares two values; NULL equals NULL."""
    in_names = "IN (SELECT value FROM json_each(:names))"

    def __init__(self, *files: str) -> None:
        """Read the queries of these files; a query in a later file replaces an earlier one."""
        self.sql: dict[str, str] = {}
        for file in files:
            self.sql |= named_queries(file)
        self._parts = {
            "columns": self.sql["job_columns"],
            "spec": self.sql["spec_of_job"],
            "in_names": self.in_names,
        }

    def query(self, name: str, **parts: str) -> str:
        """Return a query with the names in braces filled in."""
        return self.sql[name].format(**self._parts, **parts)

    def index_hint(self, index: str) -> str:
        """Return the SQL that forces an index: the planner of SQLite does not know table sizes."""
        return f" INDEXED BY {index}"

    def unindexed(self, column: str) -> str:
        """Return the column in a form for which the planner uses no index."""
        return f"+{column}"

    def list_value(self, names: Iterable[str | int]) -> Any:
        """Return names or numbers as one bound value."""
        return msgspec.json.encode(tuple(names)).decode()

    def ranges_value(self, ranges: Iterable[tuple[int, int]]) -> Any:
        """Return ranges of numbers as one bound value."""
        return msgspec.json.encode(tuple(ranges)).decode()


SQLITE = Dialect("read.sql")


def delete_expired_rows(
    execute: Callable[[str, tuple[int, ...]], Any], before: Cutoffs, limit: int
) -> int:
    """Delete rows that are older than the cut-offs; returns how many.

    `execute` runs a query of the database's `write.sql` by name, inside a transaction.
    """
    deleted = 0
    for query, before_ms in (
        ("delete_old_answers", before.responses_ms),
        ("delete_old_environments", before.environments_ms),
        ("delete_old_hours", before.hours_ms),
        ("delete_old_audit", before.audit_ms),
        ("delete_old_estimates", before.events_ms),
    ):
        deleted += execute(query, (before_ms, limit)).rowcount
    chunks = execute("first_chunks", (limit,)).fetchall()
    last_sequence, events = expired_history(chunks, before.events_ms, limit)
    if events:
        execute("delete_old_history", (last_sequence,))
    return deleted + events
