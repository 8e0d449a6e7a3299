"""Where a PostgreSQL is, and how patient to be with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Parameters = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parameters of a connection as libpq names them, and the limits of ours."""

    parameters: Parameters = field(repr=False)
    pool_min: int = 1
    pool_max: int = 8
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 30.0

    def __str__(self) -> str:
        """For people: which database and where, without any password."""
        host = self.parameters.get("host") or "the local socket"
        port = self.parameters.get("port") or 5432
        return f"'{self.parameters.get('dbname', '')}' at {host}:{port}"
