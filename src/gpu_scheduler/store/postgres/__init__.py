"""The store on PostgreSQL, for a cluster: several servers share one database, one of them writes.

This module holds only the address of a database, so that the settings can name one without loading
the driver; everything that needs psycopg lives in the other modules of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """The parameters of a connection as libpq names them, the pool size and the timeouts."""

    parameters: Mapping[str, str | int] = field(repr=False)
    pool_min: int = 1
    pool_max: int = 8
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 30.0

    def __str__(self) -> str:
        """The database and its host for messages, without the password."""
        host = self.parameters.get("host") or "the local socket"
        port = self.parameters.get("port") or 5432
        return f"'{self.parameters.get('dbname', '')}' at {host}:{port}"
