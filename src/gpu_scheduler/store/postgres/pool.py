"""The connections of a store, and whether the database is there at all.

Readers borrow connections. One that breaks is replaced, and what was asked is asked once more, as
after a restart of the database. If that fails too, the database is away: from then on nobody waits
for it. One thread asks until it is back, and everybody else is told at once. It asks for rows: a
database may be there, and its tables locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Event, Lock, Thread
from typing import TypeVar

import psycopg
import structlog

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.postgres.connection import (
    Address,
    Connection,
    NoAnswer,
    connect,
    is_away,
    is_broken,
    of_postgres,
    said_plainly,
    understood,
)
from gpu_scheduler.store.sql_files import named_queries

T = TypeVar("T")

PROBE_S = 0.5
READER = "gpu-scheduler reader"
LONGEST_END_S = 1.0
ANSWERS = named_queries("postgres/write.sql")["answers"].encode()
log = structlog.get_logger("database")


class Link:
    """Borrowed connections for reading, and the one word on whether the database is there."""

    def __init__(self, address: Address) -> None:
        """Connect for the first time, so that a wrong address is told at once."""
        self.address = address
        self._idle: list[Connection] = []
        self._open = 0
        self._freed = Condition(Lock())
        self._closed = Event()
        self._impatient = Event()
        self._trouble = ""
        self._probe: Thread | None = None
        with said_plainly(address):
            self._idle = [self._connect() for _ in range(max(1, address.pool_min))]
        self._open = len(self._idle)

    @property
    def trouble(self) -> str:
        """Why the database cannot be used; empty if it can, as far as is known."""
        return self._trouble

    @property
    def is_closed(self) -> bool:
        """Tell whether nobody needs it any more."""
        return self._closed.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait a moment; tells whether nobody should wait any longer."""
        return self._impatient.wait(seconds)

    def hurry(self) -> None:
        """From now on nobody waits until the database is back."""
        self._impatient.set()

    def check(self) -> None:
        """Raise if the database is known to be away."""
        if self.is_closed:
            raise StoreUnavailable(f"the store on {self.address} has been closed")
        if self._trouble:
            raise StoreUnavailable(self._trouble)

    def use(self, work: Callable[[Connection], T]) -> T:
        """Read something on a connection that nobody else uses at this moment."""
        self.check()
        connection = self._borrow()
        try:
            with understood(self.address):
                try:
                    return work(connection)
                except psycopg.Error as error:
                    if isinstance(error, NoAnswer) or not is_broken(connection):
                        raise
                self._drop_idle()
                connection.close()
                connection = self._connect()
                return work(connection)
        except StoreUnavailable as error:
            if is_away(error.__cause__ or error):
                self.lost(str(error))
            raise
        finally:
            self._give_back(connection)

    def lost(self, why: str) -> None:
        """The database is away; from now on it is asked by one thread until it is back."""
        with self._freed:
            if self._trouble or self.is_closed:
                return
            self._trouble = why
            self._probe = Thread(target=self._ask, name="database probe", daemon=True)
            self._probe.start()
        log.warning("the database is away", why=why)
        self._drop_idle()

    def close(self) -> None:
        """Let go of everything."""
        self.hurry()
        self._closed.set()
        self._drop_idle()
        if self._probe is not None:
            self._probe.join(LONGEST_END_S)

    # --- connections

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
            self._forget_one()
            found = of_postgres(error, self.address)
            self.lost(str(found))
            raise found from error

    def _give_back(self, connection: Connection) -> None:
        with self._freed:
            if not (self.is_closed or self._trouble or is_broken(connection)):
                self._idle.append(connection)
                self._freed.notify()
                return
        with suppress(psycopg.Error):
            connection.close()
        self._forget_one()

    def _forget_one(self) -> None:
        with self._freed:
            self._open -= 1
            self._freed.notify()

    def _drop_idle(self) -> None:
        with self._freed:
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._freed.notify_all()
        for connection in idle:
            with suppress(psycopg.Error):
                connection.close()

    def _ask(self) -> None:
        """Until it answers."""
        while not self._closed.wait(PROBE_S):
            try:
                connection = self._connect()
            except psycopg.Error as error:
                self._trouble = str(of_postgres(error, self.address))
                continue
            try:
                with suppress(psycopg.errors.UndefinedTable):
                    connection.execute(ANSWERS).fetchone()
            except psycopg.Error as error:
                self._trouble = str(of_postgres(error, self.address))
                connection.close()
                continue
            if self.is_closed:
                connection.close()
                return
            with self._freed:
                self._idle.append(connection)
                self._open += 1
                self._trouble = ""
                self._freed.notify()
            log.info("the database is back")
            return
