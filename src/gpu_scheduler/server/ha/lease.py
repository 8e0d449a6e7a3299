"""The lead as a row of the database: who has it, until when, in which term.

All times are the database's. Terms rise with the clock, so that they also rise when a backup is
restored: agents remember the newest. A take-over changes the term, a renewal does not. Both `name`
and `term` are in a unique index, so that PostgreSQL lets a renewal pass while commits hold the row
with `FOR KEY SHARE`, and lets a take-over wait for them: a commit that has checked its term is
finished before the term can change, and one that comes later finds the new term. Nothing here waits
for long, and nothing here decides when to act: see `leadership`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.identity import LeaderLease, ServerMember, Standby
from gpu_scheduler.server.ha.election import NameTaken

if TYPE_CHECKING:
    import psycopg

NAME = "scheduler"
LOCK_MS = 500
FORGET_SERVERS_AFTER_S = 3_600.0
WRITER = "gpu-scheduler writer"
"""How a connection that commits calls itself, so that one which is stuck can be told."""
CHECK_TERM = "SELECT 1 FROM leadership WHERE name = 'scheduler' AND term = %s FOR KEY SHARE"
"""The first statement of every commit: no row means that the term is over."""


_LOOK = """
SELECT term, holder, address, agents,
       extract(epoch FROM until - clock_timestamp())::float8,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM leadership WHERE name = %s
"""
_TAKE = """
UPDATE leadership
SET term = greatest(term + 1, extract(epoch FROM clock_timestamp())::bigint),
    holder = %(holder)s, address = %(address)s, agents = %(agents)s,
    until = clock_timestamp() + make_interval(secs => %(valid_s)s)
WHERE name = %(name)s AND (until <= clock_timestamp() OR holder = '')
RETURNING term
"""
_RENEW = """
UPDATE leadership SET until = clock_timestamp() + make_interval(secs => %s)
WHERE name = %s AND term = %s AND holder = %s
"""
_RELEASE = """
UPDATE leadership SET holder = '', until = clock_timestamp()
WHERE name = %s AND term = %s AND holder = %s
"""
_SEEN = """
INSERT INTO servers (name, address, version, home, seen)
VALUES (%(name)s, %(address)s, %(version)s, %(home)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET address = excluded.address, version = excluded.version, home = excluded.home,
    seen = excluded.seen
WHERE servers.home IN ('', excluded.home)
   OR servers.seen < clock_timestamp() - make_interval(secs => %(window_s)s)
"""
_NAMESAKE = """
SELECT address, extract(epoch FROM seen)::float8,
       extract(epoch FROM clock_timestamp() - seen)::float8
FROM servers WHERE name = %s
"""
_SERVERS = """
SELECT name, address, version, extract(epoch FROM clock_timestamp() - seen)::float8
FROM servers WHERE seen > clock_timestamp() - make_interval(secs => %s) ORDER BY name
"""
_CUT_OFF = """
SELECT pg_terminate_backend(activity.pid)
FROM pg_stat_activity AS activity, leadership
WHERE leadership.name = 'scheduler' AND leadership.until <= clock_timestamp()
  AND left(activity.application_name, length(%s)) = %s
  AND activity.pid <> pg_backend_pid() AND activity.datname = current_database()
  AND activity.xact_start < clock_timestamp() - make_interval(secs => %s)
"""
_GONE = "DELETE FROM servers WHERE name = %s AND home = %s"
_OLD = "DELETE FROM servers WHERE seen < clock_timestamp() - make_interval(secs => %s)"


class RowHeld(StoreUnavailable):
    """Somebody has held the row for longer than we wait."""


@dataclass(slots=True)
class PostgresLease:
    """The row, by a connection of its own: a long commit must not keep a renewal waiting.

    Threads take turns. A connection that has failed is opened again by the next call.
    """

    connect: Callable[[], psycopg.Connection[Any]]
    me: ServerMember
    valid_s: float
    _connection: psycopg.Connection[Any] | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def look(self) -> LeaderLease:
        """Say that we are here, and read who leads."""
        with self._transaction() as cursor:
            self._be_seen(cursor)
            cursor.execute(_SERVERS, (self._window_s,))
            servers = cursor.fetchall()
            row = cursor.execute(_LOOK, (NAME,)).fetchone()
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
                if name != holder or left_s <= 0
            ),
        )

    @property
    def _window_s(self) -> float:
        """Who was not seen for so long is not there any more."""
        return 3 * self.valid_s

    def _be_seen(self, cursor: psycopg.Cursor[Any]) -> None:
        """Keep our name for ourselves; refused while a server from elsewhere bears it."""
        me = self.me
        values = {"name": me.name, "address": me.address, "version": me.version, "home": me.home}
        cursor.execute(_SEEN, values | {"window_s": self._window_s})
        if cursor.rowcount == 1:
            return
        row = cursor.execute(_NAMESAKE, (me.name,)).fetchone()
        address, seen_at, ago_s = row or ("", 0.0, 0.0)
        raise NameTaken(
            f"this server is called '{me.name}', and so is another one on the same database, at "
            f"{address}, which was there {ago_s:.0f} s ago; give each server.name a name of its "
            "own",
            seen_at=seen_at,
            free_in_s=self._window_s - ago_s,
        )

    def take(self) -> int | None:
        """Take the lead if nobody has it: the new term, or None.

        Commits under way are waited for, but not for long: one that a frozen server has left open
        would hold the row for ever, so that server's writer is cut off. What it had not committed
        was not acknowledged.
        """
        try:
            return self._take()
        except RowHeld:
            with self._transaction() as cursor:
                cursor.execute(_CUT_OFF, (WRITER, WRITER, LOCK_MS / 1000))
        try:
            return self._take()
        except RowHeld:
            return None

    def _take(self) -> int | None:
        with self._transaction() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
            values = {
                "holder": self.me.name,
                "address": self.me.address,
                "agents": self.me.agents,
                "valid_s": self.valid_s,
                "name": NAME,
            }
            row = cursor.execute(_TAKE, values).fetchone()
            cursor.execute(_OLD, (FORGET_SERVERS_AFTER_S,))
        return None if row is None else int(row[0])

    def renew(self, term: int) -> bool:
        """Hold it for longer; False if the term is over."""
        with self._transaction() as cursor:
            cursor.execute(_RENEW, (self.valid_s, NAME, term, self.me.name))
            return cursor.rowcount == 1

    def release(self, term: int) -> None:
        """Give it back, so that the next one need not wait."""
        with self._transaction() as cursor:
            cursor.execute(_RELEASE, (NAME, term, self.me.name))

    def leave(self) -> None:
        """This server goes away."""
        with self._transaction() as cursor:
            cursor.execute(_GONE, (self.me.name, self.me.home))

    def secret(self) -> bytes:
        """What the servers of this cluster, and nobody else, know; the first of them makes it."""
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT INTO cluster_secrets (name, secret) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (NAME, secrets.token_bytes(32)),
            )
            row = cursor.execute(
                "SELECT secret FROM cluster_secrets WHERE name = %s", (NAME,)
            ).fetchone()
        if row is None:
            raise StoreUnavailable("the secret of the cluster has vanished from the database")
        return bytes(row[0])

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """Some statements, kept together; whatever fails is `StoreUnavailable`."""
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is used

        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    yield cursor
            except psycopg.errors.LockNotAvailable as error:
                raise RowHeld("the row of who leads is held by somebody else") from error
            except psycopg.Error as error:
                self.close()  # a new connection knows nothing of what went wrong
                told = " ".join(str(error).split())
                raise StoreUnavailable(f"the database does not say who leads: {told}") from error
