"""This server among others: its name and addresses, and its part in who leads."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gpu_scheduler import __version__
from gpu_scheduler.api.http.listeners import BoundSockets
from gpu_scheduler.model.errors import NotLeader
from gpu_scheduler.model.identity import ServerMember
from gpu_scheduler.server.access import ANY_ADDRESS
from gpu_scheduler.server.ha.election import Leadership, Times
from gpu_scheduler.server.ha.lease import CHECK_TERM, PostgresLease
from gpu_scheduler.server.start_rules import check_server_address
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.postgres.connection import Address

if TYPE_CHECKING:
    import psycopg

LEAST_PATIENCE_S = 1.0
STANDBY = "standby"


def leadership_of(settings: Settings, address: Address, me: ServerMember) -> Leadership:
    """This server's part in who leads, by a lease on PostgreSQL."""
    replication = settings.replication
    times = Times(
        renew_s=replication.heartbeat_interval_s,
        valid_s=replication.heartbeat_timeout_s,
        hesitate_s=replication.heartbeat_interval_s if settings.server.role == STANDBY else 0.0,
    )
    lease = PostgresLease(partial(_connect, address, times.valid_s), me, times.valid_s)
    return Leadership(lease, times)


@runtime_checkable
class Guarded(Protocol):
    """A store that several servers use: it asks in every commit whether it may write."""

    guard: Callable[[Any], None] | None

    def hurry(self) -> None:
        """Do not wait any more until the database is back."""
        ...


def fence(store: Guarded, term: int) -> None:
    """Bind all further commits to a term; 0: nothing is committed at all."""
    store.guard = partial(check_term, term)


def check_term(term: int, connection: psycopg.Connection[Any]) -> None:
    """Go on with a commit only in this term; until its end nobody can begin another one."""
    if not term or connection.execute(CHECK_TERM, (term,)).fetchone() is None:
        raise NotLeader(
            f"term {term} is over: another server leads"
            if term
            else "this server does not lead, so it writes nothing"
        )


def member_of(
    settings: Settings, listening: BoundSockets, agents_at: str, home: str
) -> ServerMember:
    """Who this server is to the others; `home` is where it runs."""
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


def _connect(address: Address, valid_s: float) -> psycopg.Connection[Any]:
    """A connection that is given up soon: a late answer about the lead is worth nothing."""
    from gpu_scheduler.store.postgres.connection import connect  # noqa: PLC0415 - loads the driver

    limit_s = max(LEAST_PATIENCE_S, valid_s / 4)
    hasty = replace(address, connect_timeout_s=limit_s, statement_timeout_s=limit_s)
    return connect(hasty, "gpu-scheduler lease")
