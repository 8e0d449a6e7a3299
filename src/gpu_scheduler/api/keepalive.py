"""Connections whose other end is gone without a word: the kernel asks, and closes them.

A machine that loses its power says no goodbye. Whoever only listens, as for the output of a quiet
job, would do so for ever, and what is counted for that caller would never be given back.
"""

from __future__ import annotations

import socket
from typing import Any

IDLE_S, AGAIN_S, TIMES = 30, 10, 3
"""Asked for the first time after so long without a word, then again, and given up after so many."""


def keep_alive(connection: Any) -> None:
    """Let the kernel look after a TCP connection, or after all that a listening socket takes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_S),
        (socket.TCP_KEEPINTVL, AGAIN_S),
        (socket.TCP_KEEPCNT, TIMES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
