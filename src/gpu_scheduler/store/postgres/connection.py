"""One connection to PostgreSQL that gives up in time.

PostgreSQL has a limit for statements, but a server that is frozen or cut off keeps no limits. So
its silence is measured on this side as well: a connection that has said nothing for too long is
closed. Readers are less patient than the writer, as people wait for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import Cursor, errors, pq
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.postgres import types
from psycopg.types.string import StrBinaryDumper, StrDumper

from gpu_scheduler.model.errors import (
    InternalError,
    InvalidRequest,
    SchedulerError,
    StoreDamaged,
    StoreUnavailable,
)

# --- Where a PostgreSQL is, and how patient to be with it.

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


# --- How texts travel to PostgreSQL and back.
#
# PostgreSQL keeps every character but NUL. The two smallest characters are therefore kept as pairs
# that begin with the second smallest, which leaves the order of texts as it was. Hardly any text
# has
# either of them, so looking for them is all it costs.

MARK = "\x01"
TEXT_OID = types["text"].oid
_PAIRS = {0: "\x01\x01", 1: "\x01\x02"}
_COPY = _PAIRS | {
    ord("\\"): "\\\\",
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}


def kept(text: str) -> str:
    """A text as PostgreSQL keeps it."""
    return text.translate(_PAIRS) if "\0" in text or MARK in text else text


def copied(text: str) -> str:
    """A text as it stands in the rows of a COPY."""
    if text.isprintable() and "\\" not in text:
        return text
    return text.translate(_COPY)


def read(text: str) -> str:
    """A text as it was before."""
    if MARK not in text:
        return text
    return text.replace("\x01\x01", "\0").replace("\x01\x02", MARK)


class TextDumper(StrDumper):
    """Writes texts in the form in which PostgreSQL keeps every character."""

    def dump(self, obj: str) -> Any:
        """The bytes of a text."""
        return super().dump(kept(obj))


class BinaryTextDumper(StrBinaryDumper):
    """Writes texts in arrays, which then need no quotes."""

    def dump(self, obj: str) -> Any:
        """The bytes of a text."""
        return super().dump(kept(obj))


def adapt(adapters: AdaptersMap) -> None:
    """Make a connection write texts in this way."""
    adapters.register_dumper(str, BinaryTextDumper)
    adapters.register_dumper(str, TextDumper)


def rows_of(cursor: Cursor[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows of a cursor with their texts as they were before."""
    places = [
        place
        for place, column in enumerate(cursor.description or ())
        if column.type_code == TEXT_OID
    ]
    for row in cursor.fetchall():
        for place in places:
            text = row[place]
            if text is not None and MARK in text:
                yield tuple([read(value) if isinstance(value, str) else value for value in row])
                break
        else:
            yield row


# --- One connection to PostgreSQL that gives up in time.

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


# --- What PostgreSQL says when something goes wrong, as errors of ours that say what to do.

_AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
)
"""It may work later, or elsewhere: connections, shutdowns, disks, locks, time."""
_REMEDIES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.DiskFull, "its disk is full; make room there, nothing was half-written"),
    (errors.ReadOnlySqlTransaction, "it is a standby and cannot be written to; name the primary"),
    (errors.InvalidPassword, "it refused the password; check database.user and the password"),
    (errors.InvalidAuthorizationSpecification, "it refused the role; check database.user"),
    (errors.InvalidCatalogName, "there is no such database; make it with 'createdb'"),
    (errors.InsufficientPrivilege, "the role may not do that; make it the owner of the database"),
    (errors.TooManyConnections, "it has no connection left; lower database.pool_max"),
    (errors.CannotConnectNow, "it is starting or stopping"),
    (errors.AdminShutdown, "it is being stopped, or somebody ended our connection"),
    (errors.ConnectionTimeout, "it does not answer"),
)


def is_away(error: BaseException) -> bool:
    """Tell whether the database, and not what was asked of it, is the trouble."""
    return isinstance(error, _AWAY)


@contextmanager
def said_plainly(address: Address) -> Iterator[None]:
    """Raise our errors in place of those of PostgreSQL."""
    try:
        yield
    except psycopg.Error as error:
        raise of_postgres(error, address) from error


@contextmanager
def understood(address: Address) -> Iterator[None]:
    """While rows are made from what is stored: what makes no sense is damage."""
    try:
        with said_plainly(address):
            yield
    except (msgspec.MsgspecError, InvalidRequest, KeyError, ValueError) as error:
        raise StoreDamaged(
            f"the database {address} is damaged: a row cannot be understood ({error}). Nothing was "
            "changed; look at it with psql, or restore a backup"
        ) from error


def of_postgres(error: psycopg.Error, address: Address) -> SchedulerError:
    """The error of ours for one of PostgreSQL's."""
    found = said(error)
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return StoreUnavailable(f"the database {address} is not available: {remedy} ({found})")
    if is_away(error):
        return StoreUnavailable(f"the database {address} is not available: {found}")
    return InternalError(f"the database {address} refused a statement: {found}")


def said(error: psycopg.Error) -> str:
    """The first line of what PostgreSQL said."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
