"""Named SQL from the files beside this module.

A line `-- name: x` begins the query `x`; it ends where the next one begins. Names in braces are
filled in once, when the program starts, or by the caller; values are always bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import msgspec

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def named_queries(file: str) -> dict[str, str]:
    """All queries of a file, by name, without their comments."""
    text = (files("gpu_scheduler.store") / "sql" / file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {
        name: _COMMENT.sub("", query).strip()
        for name, query in zip(parts[::2], parts[1::2], strict=True)
    }


def migrations(database: str = "") -> list[tuple[int, str]]:
    """The steps from nothing to the newest form: version and script, in order.

    Of SQLite, or of the database that is named.
    """
    folder = files("gpu_scheduler.store") / "sql" / database / "migrations"
    steps = [
        (int(step.name.partition("_")[0]), step.read_text(encoding="utf-8"))
        for step in folder.iterdir()
        if step.name.endswith(".sql")
    ]
    return sorted(steps)


# --- Where the SQL of databases differs, for statements that are put together from parts.


class Dialect:
    """The SQL of SQLite, which others derive from: the queries by name, and some small words."""

    same = "IS"
    """Equal, also if both are NULL."""
    in_names = "IN (SELECT value FROM json_each(:names))"

    def __init__(self, *files: str) -> None:
        """Read the queries of these files; a later one wins over an earlier one."""
        self.sql: dict[str, str] = {}
        for file in files:
            self.sql |= named_queries(file)
        self._parts = {
            "columns": self.sql["job_columns"],
            "spec": self.sql["spec_of_job"],
            "in_names": self.in_names,
        }

    def reading(self, name: str, **parts: str) -> str:
        """A query with its parts filled in."""
        return self.sql[name].format(**self._parts, **parts)

    def along(self, index: str) -> str:
        """Make a statement read along an index: the planner of SQLite knows no sizes."""
        return f" INDEXED BY {index}"

    def unindexed(self, column: str) -> str:
        """A column that no index is looked for."""
        return f"+{column}"

    def listed(self, names: Iterable[str | int]) -> Any:
        """Names or numbers as one value that SQL can look into."""
        return msgspec.json.encode(tuple(names)).decode()

    def ranges(self, ranges: Iterable[tuple[int, int]]) -> Any:
        """Ranges of numbers as one value that SQL can look into."""
        return msgspec.json.encode(tuple(ranges)).decode()


SQLITE = Dialect("read.sql")
