"""This server among others: its name and addresses, and its part in who leads."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_scheduler import __version__
from gpu_scheduler.api.serve import Listening
from gpu_scheduler.client.address import read_address
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.leadership import Member
from gpu_scheduler.server.access import ANY_ADDRESS
from gpu_scheduler.server.leadership import Leadership, Times
from gpu_scheduler.server.lease import PostgresLease
from gpu_scheduler.settings.groups import Settings

if TYPE_CHECKING:
    import psycopg

STANDBY = "standby"


def leadership_of(settings: Settings, url: str, me: Member) -> Leadership:
    """This server's part in who leads, by a lease on PostgreSQL."""
    replication = settings.replication
    replication.check()
    times = Times(
        renew_s=replication.heartbeat_interval_s,
        valid_s=replication.heartbeat_timeout_s,
        hesitate_s=replication.heartbeat_interval_s if settings.server.role == STANDBY else 0.0,
    )
    lease = PostgresLease(partial(_connect, url, times.valid_s), me, times.valid_s)
    return Leadership(lease, times)


def member_of(settings: Settings, listening: Listening, agents_at: str) -> Member:
    """Who this server is to the others."""
    api, server = settings.api, settings.server
    host = socket.gethostname() if api.host in ANY_ADDRESS else api.host
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if api.tls_certificate else "http"
    address = server.address or f"{scheme}://{host}:{listening.http_port}"
    try:
        read_address(address)
    except InvalidRequest as error:
        raise InvalidRequest(f"server.address cannot be used: {error}") from None
    port = agents_at.rpartition(":")[2]
    return Member(
        name=server.name or f"{socket.gethostname()}:{listening.http_port}",
        address=address,
        agents=server.agents_address or (f"{host}:{port}" if port else ""),
        version=__version__,
    )


def _connect(url: str, valid_s: float) -> psycopg.Connection[Any]:
    """A connection that notices soon when nobody is at the other end."""
    import psycopg  # noqa: PLC0415 - only where PostgreSQL is used

    seconds = max(1, round(valid_s / 2))
    return psycopg.connect(
        url,
        autocommit=True,
        application_name="gpu-scheduler lease",
        connect_timeout=max(2, seconds),
        keepalives_idle=seconds,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=1000 * seconds,
    )
