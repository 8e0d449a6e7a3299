"""Where the SQL of databases differs, for statements that are put together from parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpu_scheduler.store.queries import named_queries


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
