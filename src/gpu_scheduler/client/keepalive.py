"""TCP keep-alive: the kernel probes idle connections and closes those whose peer is gone.

A machine that loses power sends no FIN. Without probes, a client that follows a quiet job would
wait for ever, and a server would never release what it counts for such a client. Clients and
servers use the same options.

A program that loaded the client before an upgrade imports this module late, with the modules of the
old version beside it, so it imports nothing of the client.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_S, INTERVAL_S, PROBES = 30, 10, 3
"""The idle time before the first probe, the interval, and the number of unanswered probes."""
GONE_S = IDLE_S + INTERVAL_S * PROBES
"""After so long without any packet, the peer counts as gone."""


def keep_alive(connection: Any) -> None:
    """Enable keep-alive on a connection, or on all connections of a listening socket."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set(connection, "TCP_KEEPIDLE", IDLE_S)
    _set(connection, "TCP_KEEPINTVL", INTERVAL_S)
    _set(connection, "TCP_KEEPCNT", PROBES)


def notice_loss(connection: Any) -> None:
    """Enable keep-alive and a limit for unacknowledged data, for connections to a server.

    The kernel sends no probes while sent data is unacknowledged, so that needs a limit of its own.
    """
    keep_alive(connection)
    _set(connection, "TCP_USER_TIMEOUT", GONE_S * 1000)


def allow_backlog(connection: Any) -> None:
    """Remove the limit for unacknowledged data for a peer that may not read, as a job's input.

    The caller must then check by itself whether the peer is alive.
    """
    _set(connection, "TCP_USER_TIMEOUT", 0)


def _set(connection: Any, name: str, value: int) -> None:
    """Set a TCP option if the system has it."""
    option = getattr(socket, name, None)
    if option is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
