"""One connection to PostgreSQL that gives up in time.

PostgreSQL has a limit for statements, but a server that is frozen or cut off keeps no limits. So
its silence is measured on this side as well: a connection that has said nothing for too long is
closed. Readers are less patient than the writer, as people wait for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.store.postgres.adapting import adapt
from gpu_scheduler.store.postgres.address import Address

R = TypeVar("R")

LEAST_VERSION = 15
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
IDLE_IN_TRANSACTION_S = 15
"""A writer that is frozen within a transaction must not hold its locks for longer."""
GRACE_S = 1.0
"""By so much later than the server's own limit we give up, so that the server can say why."""


class NoAnswer(psycopg.OperationalError):
    """The server said nothing in time."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a limit for silence."""

    patience_s = 30.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer, but not for ever."""
        limited = _limited(gen, self.patience_s)
        try:
            return super().wait(limited, *args, **kwargs)
        except NoAnswer:
            self.pgconn.finish()
            raise


def _limited(gen: Generator[Any, Any, R], patience_s: float) -> Generator[Any, Any, R]:
    """The same steps; psycopg takes one at least ten times a second, whatever the server does."""
    try:
        wanted = next(gen)
        heard = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > patience_s:
                raise NoAnswer(f"it has not answered for {patience_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        value: R = done.value
        return value


def connect(address: Address, name: str, *, read_only: bool = False) -> Connection:
    """A new connection in autocommit mode; `name` is what the administrator sees."""
    limit_ms = round(address.statement_timeout_s * 1000)
    options = f"-c statement_timeout={limit_ms} -c search_path=public -c TimeZone=UTC"
    options += f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_S * 1000}"
    if read_only:
        options += " -c default_transaction_read_only=on"
    given = dict(address.parameters)
    given["options"] = f"{given.get('options', '')} {options}".strip()
    connection = Connection.connect(
        **(KEEPALIVE | given),  # type: ignore[arg-type]
        connect_timeout=math.ceil(address.connect_timeout_s),
        application_name=name,
        client_encoding="UTF8",
        autocommit=True,
    )
    connection.patience_s = (
        address.connect_timeout_s if read_only else address.statement_timeout_s + GRACE_S
    )
    adapt(connection.adapters)
    return connection


def is_broken(connection: Connection) -> bool:
    """Tell whether a connection is of no use any more."""
    return connection.closed or connection.pgconn.status != pq.ConnStatus.OK


def parameters_in(url: str) -> dict[str, str]:
    """The parameters that a URL names."""
    try:
        return {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error as error:
        raise InvalidRequest(
            "the URL of the database cannot be read; write "
            "postgresql://user@host:port/database?sslmode=..., with %-codes for special characters "
            "in a password"
        ) from error
