"""Connections to PostgreSQL: text encoding, timeouts, error translation and the pool for readers.

An address comes in, connections and rows go out. PostgreSQL limits the time of a statement itself,
but a server that hangs or is cut off cannot enforce its own limits. So each connection also
measures how long the server has sent nothing, and closes itself after `silence_limit_s`. Readers
wait for a shorter time than the writer, because users wait for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Event, Lock, Thread
from typing import Any, TypeVar

import msgspec
import psycopg
import structlog
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
from gpu_scheduler.store.postgres import DatabaseAddress
from gpu_scheduler.store.sql_queries import named_queries

T = TypeVar("T")

log = structlog.get_logger("database")

# Text encoding. PostgreSQL stores every character but NUL. The two smallest characters are
# therefore stored as pairs that begin with \x01, which keeps the sort order. Almost no text
# contains either of them, so the usual cost is one search.

ESCAPE = "\x01"
TEXT_OID = types["text"].oid
_PAIRS = {0: "\x01\x01", 1: "\x01\x02"}
_COPY = _PAIRS | {
    ord("\\"): "\\\\",
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}


def escape_text(text: str) -> str:
    """Return the text in the form in which PostgreSQL can store it."""
    return text.translate(_PAIRS) if "\0" in text or ESCAPE in text else text


def escape_for_copy(text: str) -> str:
    """Return the text as a field of a COPY line."""
    if text.isprintable() and "\\" not in text:
        return text
    return text.translate(_COPY)


def unescape_text(text: str) -> str:
    """Return the original of a stored text."""
    if ESCAPE not in text:
        return text
    return text.replace("\x01\x01", "\0").replace("\x01\x02", ESCAPE)


class TextDumper(StrDumper):
    """Escapes the texts of ordinary parameters."""

    def dump(self, obj: str) -> Any:
        """Return the bytes of a text."""
        return super().dump(escape_text(obj))


class BinaryTextDumper(StrBinaryDumper):
    """Escapes texts in arrays; the binary form needs no quotes."""

    def dump(self, obj: str) -> Any:
        """Return the bytes of a text."""
        return super().dump(escape_text(obj))


def register_text_dumpers(adapters: AdaptersMap) -> None:
    """Make a connection escape the texts that it sends."""
    adapters.register_dumper(str, BinaryTextDumper)
    adapters.register_dumper(str, TextDumper)


def decoded_rows(cursor: Cursor[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a cursor with their original texts."""
    places = [
        place
        for place, column in enumerate(cursor.description or ())
        if column.type_code == TEXT_OID
    ]
    for row in cursor.fetchall():
        for place in places:
            text = row[place]
            if text is not None and ESCAPE in text:
                yield tuple(
                    [unescape_text(value) if isinstance(value, str) else value for value in row]
                )
                break
        else:
            yield row


# One connection.

MIN_VERSION = 15
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
IDLE_IN_TRANSACTION_S = 15
"""PostgreSQL ends a transaction that is idle for longer, so a hung writer releases its locks."""
GRACE_S = 1.0
"""This side gives up later than the statement timeout by so much, so that the server can answer."""


class NoResponse(psycopg.OperationalError):
    """The server sent nothing within the limit."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself when the server is silent for too long."""

    silence_limit_s = 30.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for a response, at most for the limit."""
        limited = _limit_silence(gen, self.silence_limit_s)
        try:
            return super().wait(limited, *args, **kwargs)
        except NoResponse:
            self.pgconn.finish()
            raise


def _limit_silence(gen: Generator[Any, Any, T], limit_s: float) -> Generator[Any, Any, T]:
    """Take the same steps; psycopg takes one at least ten times a second, even without data."""
    try:
        wanted = next(gen)
        last_data = time.monotonic()
        while True:
            ready = yield wanted
            if ready:
                last_data = time.monotonic()
            elif time.monotonic() - last_data > limit_s:
                raise NoResponse(f"it has not answered for {limit_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        value: T = done.value
        return value


def connect(address: DatabaseAddress, name: str, *, read_only: bool = False) -> Connection:
    """Open a connection in autocommit mode; `name` is shown in pg_stat_activity."""
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
    connection.silence_limit_s = (
        address.connect_timeout_s if read_only else address.statement_timeout_s + GRACE_S
    )
    register_text_dumpers(connection.adapters)
    return connection


def is_broken(connection: Connection) -> bool:
    """Tell whether a connection is unusable."""
    return connection.closed or connection.pgconn.status != pq.ConnStatus.OK


def parse_url(url: str) -> dict[str, str]:
    """Return the connection parameters in a URL."""
    try:
        return {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error as error:
        raise InvalidRequest(
            "the URL of the database cannot be read; write "
            "postgresql://user@host:port/database?sslmode=..., with %-codes for special characters "
            "in a password"
        ) from error


# Translation of PostgreSQL's errors into ours.

_UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
)
"""Errors that may pass: lost connections, shutdowns, full disks, locks, timeouts, a standby."""
_REMEDIES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.DiskFull, "its disk is full; free some space there, nothing was half-written"),
    (errors.ReadOnlySqlTransaction, "it is a standby and read-only; name the primary"),
    (errors.InvalidPassword, "it rejected the password; check database.user and the password"),
    (errors.InvalidAuthorizationSpecification, "it rejected the role; check database.user"),
    (errors.InvalidCatalogName, "the database does not exist; create it with 'createdb'"),
    (errors.InsufficientPrivilege, "the role lacks privileges; make it the owner of the database"),
    (errors.TooManyConnections, "it has no free connection; lower database.pool_max"),
    (errors.CannotConnectNow, "it is starting or stopping"),
    (errors.AdminShutdown, "it is shutting down, or an administrator closed our connection"),
    (errors.ConnectionTimeout, "it does not answer"),
)


def is_unavailable(error: BaseException) -> bool:
    """Tell whether an error is about the database's availability, not about the statement."""
    return isinstance(error, _UNAVAILABLE)


@contextmanager
def translate_errors(address: DatabaseAddress) -> Iterator[None]:
    """Raise our errors in place of psycopg's."""
    try:
        yield
    except psycopg.Error as error:
        raise to_store_error(error, address) from error


@contextmanager
def translate_read_errors(address: DatabaseAddress) -> Iterator[None]:
    """Like `translate_errors`; a stored row that cannot be decoded means a damaged database."""
    try:
        with translate_errors(address):
            yield
    except (msgspec.MsgspecError, InvalidRequest, KeyError, ValueError) as error:
        raise StoreDamaged(
            f"the database {address} is damaged: a row cannot be decoded ({error}). Nothing was "
            "changed; inspect it with psql, or restore a backup"
        ) from error


def to_store_error(error: psycopg.Error, address: DatabaseAddress) -> SchedulerError:
    """Return our error for one of psycopg's."""
    found = first_line(error)
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return StoreUnavailable(f"the database {address} is not available: {remedy} ({found})")
    if is_unavailable(error):
        return StoreUnavailable(f"the database {address} is not available: {found}")
    return InternalError(f"the database {address} rejected a statement: {found}")


def first_line(error: psycopg.Error) -> str:
    """Return the first line of PostgreSQL's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# The pool.

PROBE_INTERVAL_S = 0.5
READER = "gpu-scheduler reader"
MAX_JOIN_S = 1.0
PROBE = named_queries("postgres/write.sql")["probe"].encode()


class ConnectionPool:
    """Connections for readers, and the one place that knows whether the database is available.

    A connection that breaks is replaced and the read is repeated once, as after a restart of the
    database. If that fails too, the database counts as unavailable: every further read fails at
    once, and one thread probes until the database answers. The probe reads rows, because a server
    can accept connections while its tables are locked.
    """

    def __init__(self, address: DatabaseAddress) -> None:
        """Open the first connections, so that a wrong address fails at once."""
        self.address = address
        self._idle: list[Connection] = []
        self._open = 0
        self._freed = Condition(Lock())
        self._closed = Event()
        self._stop_waiting = Event()
        self._unavailable_reason = ""
        self._probe: Thread | None = None
        with translate_errors(address):
            self._idle = [self._connect() for _ in range(max(1, address.pool_min))]
        self._open = len(self._idle)

    @property
    def unavailable_reason(self) -> str:
        """Why the database cannot be used; empty if it can, as far as is known."""
        return self._unavailable_reason

    @property
    def is_closed(self) -> bool:
        """Tell whether `close` was called."""
        return self._closed.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait a moment; returns whether `stop_waiting` was called."""
        return self._stop_waiting.wait(seconds)

    def stop_waiting(self) -> None:
        """From now on, no thread waits until the database is available again."""
        self._stop_waiting.set()

    def check_available(self) -> None:
        """Raise if the pool is closed or the database is known to be unavailable."""
        if self.is_closed:
            raise StoreUnavailable(f"the store on {self.address} has been closed")
        if self._unavailable_reason:
            raise StoreUnavailable(self._unavailable_reason)

    def use(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with a connection that no other thread uses meanwhile."""
        self.check_available()
        connection = self._borrow()
        try:
            with translate_read_errors(self.address):
                try:
                    return work(connection)
                except psycopg.Error as error:
                    if isinstance(error, NoResponse) or not is_broken(connection):
                        raise
                self._close_idle()
                connection.close()
                connection = self._connect()
                return work(connection)
        except StoreUnavailable as error:
            if is_unavailable(error.__cause__ or error):
                self.mark_unavailable(str(error))
            raise
        finally:
            self._give_back(connection)

    def mark_unavailable(self, reason: str) -> None:
        """Fail all reads from now on, and probe until the database answers."""
        with self._freed:
            if self._unavailable_reason or self.is_closed:
                return
            self._unavailable_reason = reason
            self._probe = Thread(target=self._run_probe, name="database probe", daemon=True)
            self._probe.start()
        log.warning("database unavailable", why=reason)
        self._close_idle()

    def close(self) -> None:
        """Close all connections and end the probe."""
        self.stop_waiting()
        self._closed.set()
        self._close_idle()
        if self._probe is not None:
            self._probe.join(MAX_JOIN_S)

    def _connect(self) -> Connection:
        return connect(self.address, READER, read_only=True)

    def _borrow(self) -> Connection:
        end = time.monotonic() + self.address.connect_timeout_s
        with self._freed:
            while not self._idle and self._open >= self.address.pool_max:
                if not self._freed.wait(end - time.monotonic()):
                    raise StoreUnavailable(
                        f"all {self.address.pool_max} connections to the database {self.address} "
                        "are busy; try again, or raise database.pool_max"
                    )
            if self._idle:
                return self._idle.pop()
            self._open += 1
        try:
            return self._connect()
        except psycopg.Error as error:
            self._count_closed()
            found = to_store_error(error, self.address)
            self.mark_unavailable(str(found))
            raise found from error

    def _give_back(self, connection: Connection) -> None:
        with self._freed:
            if not (self.is_closed or self._unavailable_reason or is_broken(connection)):
                self._idle.append(connection)
                self._freed.notify()
                return
        with suppress(psycopg.Error):
            connection.close()
        self._count_closed()

    def _count_closed(self) -> None:
        with self._freed:
            self._open -= 1
            self._freed.notify()

    def _close_idle(self) -> None:
        with self._freed:
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._freed.notify_all()
        for connection in idle:
            with suppress(psycopg.Error):
                connection.close()

    def _run_probe(self) -> None:
        while not self._closed.wait(PROBE_INTERVAL_S):
            try:
                connection = self._connect()
            except psycopg.Error as error:
                self._unavailable_reason = str(to_store_error(error, self.address))
                continue
            try:
                with suppress(psycopg.errors.UndefinedTable):
                    connection.execute(PROBE).fetchone()
            except psycopg.Error as error:
                self._unavailable_reason = str(to_store_error(error, self.address))
                connection.close()
                continue
            with self._freed:
                # Under the lock: either `close` finds the connection, or it is closed here.
                if not self.is_closed:
                    self._idle.append(connection)
                    self._open += 1
                    self._unavailable_reason = ""
                    self._freed.notify()
                    log.info("database available again")
                    return
            connection.close()
