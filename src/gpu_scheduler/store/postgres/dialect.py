"""The SQL of PostgreSQL where it differs from that of SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from gpu_scheduler.store.dialect import Dialect

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
