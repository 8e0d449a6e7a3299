"""Connections whose other end is gone without a word: the kernel asks, and closes them.

A machine that loses its power says no goodbye. Whoever only listens, as for the output of a quiet
job, would do so for ever, and what a server counts for such a caller would never be given back.
Clients and servers use it alike.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_S, AGAIN_S, TIMES = 30, 10, 3
"""Asked for the first time after so long without a word, then again, and given up after so many."""
GONE_S = IDLE_S + AGAIN_S * TIMES
"""So long after its last word the other end is known to be gone."""


def keep_alive(connection: Any) -> None:
    """Let the kernel look after a TCP connection, or after all that a listening socket takes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set(connection, "TCP_KEEPIDLE", IDLE_S)
    _set(connection, "TCP_KEEPINTVL", AGAIN_S)
    _set(connection, "TCP_KEEPCNT", TIMES)


def notice_loss(connection: Any) -> None:
    """The same for who asks a server, which reads all that it is sent.

    While something that was sent is not acknowledged, nothing is asked; so that has an end, too.
    """
    keep_alive(connection)
    _set(connection, "TCP_USER_TIMEOUT", GONE_S * 1000)


def allow_backlog(connection: Any) -> None:
    """The other end may leave unread what it is sent for as long as it likes, as a job its input.

    Whoever allows that must ask by itself whether somebody is there.
    """
    _set(connection, "TCP_USER_TIMEOUT", 0)


def _set(connection: Any, name: str, value: int) -> None:
    """Set an option of TCP, where the system has it."""
    option = getattr(socket, name, None)
    if option is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
