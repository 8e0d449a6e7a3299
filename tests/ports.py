"""Ports for processes that start later than their port is chosen, or restart on the same port.

The kernel assigns ephemeral ports to any process, even one that a stopped process wants back. These
ports are outside of that range and of the rendezvous range of gangs (from 20,000 on); every worker
of the suite has its own.
"""

import os
import socket
from contextlib import closing
from itertools import count
from pathlib import Path
from random import SystemRandom

FIRST = 10_000
FOR_EACH = 1_200
WORKERS = 8
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_numbers = count(SystemRandom().randrange(FOR_EACH))


def lasting_port() -> int:
    """A port on which no process listens, and which is given to no other test."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    for _ in range(FOR_EACH):
        port = FIRST + worker * FOR_EACH + next(_numbers) % FOR_EACH
        if not _is_given_out(port) and _is_free(port):
            return port
    raise AssertionError(f"no port is free from {FIRST + worker * FOR_EACH}")


def _is_given_out(port: int) -> bool:
    """Whether the kernel may assign it to a process that asks for any port."""
    if not _RANGE.exists():
        return False
    least, most = map(int, _RANGE.read_text(encoding="ascii").split())
    return least <= port <= most


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
