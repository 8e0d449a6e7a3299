"""The leader's lease and the list of servers, as rows of PostgreSQL; fencing of commits by term.

All times are the database's. Terms grow with the clock, so that they also grow after a backup is
restored: agents remember the newest term. A take-over changes the term, a renewal does not. Both
`name` and `term` are in a unique index. So PostgreSQL lets a renewal pass while commits hold the
row with `FOR KEY SHARE`, and makes a take-over wait for them: a commit that has checked its term
finishes before the term can change, and a later commit finds the new term. No call here blocks for
long. `election` decides when to acquire and renew.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gpu_scheduler import __version__
from gpu_scheduler.api.http.listeners import BoundSockets
from gpu_scheduler.model.errors import NotLeader, StoreUnavailable
from gpu_scheduler.model.identity import LeaderLease, ServerMember, Standby
from gpu_scheduler.server.ha.election import LeaderElector, LeaseTimes, ServerNameTaken
from gpu_scheduler.server.network_access import ANY_ADDRESS
from gpu_scheduler.server.settings_rules import check_server_address
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.postgres import DatabaseAddress
from gpu_scheduler.store.sql_queries import named_queries

if TYPE_CHECKING:
    import psycopg

NAME = "scheduler"
SQL = {name: text.encode() for name, text in named_queries("postgres/leadership.sql").items()}
LOCK_TIMEOUT_MS = 500
SERVER_RETENTION_S = 3_600.0
WRITER = "gpu-scheduler writer"
"""Application name of a connection that commits, so that a stuck one can be found."""
SHORTEST_TIMEOUT_S = 1.0


class LeaseRowLocked(StoreUnavailable):
    """Another transaction has locked the lease row for longer than the lock timeout."""


@dataclass(slots=True)
class PostgresLease:
    """The lease, on a connection of its own: a long commit must not delay a renewal.

    Threads take turns. After a failure the next call opens a new connection.
    """

    connect: Callable[[], psycopg.Connection[Any]]
    me: ServerMember
    valid_s: float
    _connection: psycopg.Connection[Any] | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def heartbeat(self) -> LeaderLease:
        """Record that this server is alive; return the current lease."""
        with self._transaction() as cursor:
            self._record_heartbeat(cursor)
            cursor.execute(SQL["live_servers"], (self._liveness_s,))
            servers = cursor.fetchall()
            row = cursor.execute(SQL["read_lease"], (NAME,)).fetchone()
        if row is None:
            return LeaderLease()
        term, holder, address, agents, left_s, database_ms = row
        return LeaderLease(
            term=term,
            holder=holder,
            address=address,
            agents=agents,
            left_s=left_s,
            database_ms=database_ms,
            standbys=tuple(
                Standby(name=name, address=place, version=version, seen_s=seen_s)
                for name, place, version, seen_s in servers
                # A leader that died is silent for this long before another takes its lease.
                if seen_s <= self.valid_s and (name != holder or left_s <= 0)
            ),
        )

    @property
    def _liveness_s(self) -> float:
        """A server without a heartbeat for this long counts as dead."""
        return 3 * self.valid_s

    def _record_heartbeat(self, cursor: psycopg.Cursor[Any]) -> None:
        """Claim this server's name; fail while a live server of another installation has it."""
        me = self.me
        values = {"name": me.name, "address": me.address, "version": me.version, "home": me.home}
        cursor.execute(SQL["heartbeat"], values | {"window_s": self._liveness_s})
        if cursor.rowcount == 1:
            return
        row = cursor.execute(SQL["same_name"], (me.name,)).fetchone()
        address, seen_at, ago_s = row or ("", 0.0, 0.0)
        raise ServerNameTaken(
            f"the server name '{me.name}' is already used by a server on the same database, at "
            f"{address}, last seen {ago_s:.0f} s ago; give each server its own server.name",
            seen_at=seen_at,
            free_in_s=self._liveness_s - ago_s,
        )

    def acquire(self) -> int | None:
        """Take the lease if it is free: the new term, or None.

        The take-over waits for commits in progress, but not for long: a suspended server can leave
        a transaction open for ever, so its writer connection is terminated. What it had not
        committed was not acknowledged either.
        """
        try:
            return self._try_acquire()
        except LeaseRowLocked:
            with self._transaction() as cursor:
                cursor.execute(SQL["terminate_writers"], (WRITER, WRITER, LOCK_TIMEOUT_MS / 1000))
        try:
            return self._try_acquire()
        except LeaseRowLocked:
            return None

    def _try_acquire(self) -> int | None:
        with self._transaction() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            values = {
                "holder": self.me.name,
                "address": self.me.address,
                "agents": self.me.agents,
                "valid_s": self.valid_s,
                "name": NAME,
            }
            row = cursor.execute(SQL["acquire"], values).fetchone()
            cursor.execute(SQL["delete_stale_servers"], (SERVER_RETENTION_S,))
        return None if row is None else int(row[0])

    def renew(self, term: int) -> bool:
        """Extend the lease; False if the term has ended."""
        with self._transaction() as cursor:
            cursor.execute(SQL["renew"], (self.valid_s, NAME, term, self.me.name))
            return cursor.rowcount == 1

    def release(self, term: int) -> None:
        """Give the lease back, so that the next leader need not wait for it to expire."""
        with self._transaction() as cursor:
            cursor.execute(SQL["release"], (NAME, term, self.me.name))

    def unregister(self) -> None:
        """Remove this server from the list of servers."""
        with self._transaction() as cursor:
            cursor.execute(SQL["unregister"], (self.me.name, self.me.home))

    def cluster_secret(self) -> bytes:
        """The secret that only the servers of this cluster share; the first server makes it."""
        with self._transaction() as cursor:
            cursor.execute(SQL["make_secret"], (NAME, secrets.token_bytes(32)))
            row = cursor.execute(SQL["read_secret"], (NAME,)).fetchone()
        if row is None:
            raise StoreUnavailable("the cluster secret is missing from the database")
        return bytes(row[0])

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """Run statements in one transaction; any failure becomes `StoreUnavailable`."""
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is used

        from gpu_scheduler.store.postgres.connection import first_line  # noqa: PLC0415 - the same

        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    yield cursor
            except psycopg.errors.LockNotAvailable as error:
                raise LeaseRowLocked("another transaction has locked the lease row") from error
            except psycopg.Error as error:
                self.close()  # the state of the connection is unknown
                raise StoreUnavailable(f"cannot read the lease: {first_line(error)}") from error


@runtime_checkable
class FencedStore(Protocol):
    """A store that several servers share: it checks in every commit whether it may write."""

    fence: Callable[[Any], None] | None

    def stop_waiting(self) -> None:
        """Stop waiting for the database to come back."""
        ...


def fence(store: FencedStore, term: int) -> None:
    """Bind all further commits to a term; with 0 every commit fails."""
    store.fence = partial(check_term, term)


def check_term(term: int, connection: psycopg.Connection[Any]) -> None:
    """Continue a commit only in this term; until it ends no other term can begin."""
    if not term or connection.execute(SQL["check_term"], (term,)).fetchone() is None:
        raise NotLeader(
            f"term {term} has ended: another server is the leader"
            if term
            else "this server is not the leader, so it writes nothing"
        )


def elector_of(settings: Settings, address: DatabaseAddress, me: ServerMember) -> LeaderElector:
    """The election among the servers of one PostgreSQL database."""
    replication = settings.replication
    is_standby = settings.server.role == "standby"
    times = LeaseTimes(
        renew_s=replication.heartbeat_interval_s,
        valid_s=replication.heartbeat_timeout_s,
        hesitate_s=replication.heartbeat_interval_s if is_standby else 0.0,
    )
    lease = PostgresLease(partial(_connect, address, times.valid_s), me, times.valid_s)
    return LeaderElector(lease, times)


def member_of(
    settings: Settings, listening: BoundSockets, agents_at: str, home: str
) -> ServerMember:
    """The name and addresses of this server; `home` identifies its installation."""
    api, server = settings.api, settings.server
    host = socket.gethostname() if api.host in ANY_ADDRESS else api.host
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if api.tls_certificate else "http"
    address = server.address or f"{scheme}://{host}:{listening.http_port}"
    check_server_address(address)
    port = agents_at.rpartition(":")[2]
    return ServerMember(
        name=server.name or f"{socket.gethostname()}:{listening.http_port}",
        address=address,
        agents=server.agents_address or (f"{host}:{port}" if port else ""),
        version=__version__,
        home=home,
    )


def _connect(address: DatabaseAddress, valid_s: float) -> psycopg.Connection[Any]:
    """A connection with short timeouts: a late answer about the lease is useless."""
    from gpu_scheduler.store.postgres.connection import connect  # noqa: PLC0415 - loads the driver

    limit_s = max(SHORTEST_TIMEOUT_S, valid_s / 4)
    impatient = replace(address, connect_timeout_s=limit_s, statement_timeout_s=limit_s)
    return connect(impatient, "gpu-scheduler lease")
