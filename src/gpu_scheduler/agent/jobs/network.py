"""This machine's network: by which interface an address is reached, and which ports are free."""

from __future__ import annotations

import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

SIOCGIFADDR = 0x8915
NAME_BYTES = 15
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LEAST_PORT = 20_000
USUAL_EPHEMERAL = 32_768
TRIES = 64
ELSEWHERE = (("192.0.2.1", "9"), ("2001:db8::1", "9"))
"""Addresses that nobody has, kept for documents: the way to them is the way out of this machine."""


def interface_of(address: str) -> str:
    """The interface that has this address or host name; "" if none has, or only loopback."""
    try:
        wanted = socket.gethostbyname(address) if address else ""
    except OSError:
        return ""
    if not wanted or wanted.startswith("127."):
        return ""
    for _, name in socket.if_nameindex():
        if _address_of(name) == wanted:
            return name
    return ""


def own_address(targets: Sequence[str]) -> str:
    """The address that this machine uses towards a server; "" if no way leads to any.

    One that only this machine reaches is the last choice. A server on this very machine that is
    called by its name has others to serve too, who could not reach that one: to them leads the way
    out of this machine.
    """
    here = ""
    for target in targets:
        if target.startswith("unix:"):
            continue
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        found = _towards(host, port)
        if found and not _is_loopback(found):
            return found
        if found and host != "localhost" and not _is_loopback(host):
            found = next(filter(None, (_towards(*place) for place in ELSEWHERE)), found)
        here = here or found
    return here


def _towards(host: str, port: str) -> str:
    """Our address on the way to a host. Nothing is sent: to connect only chooses the way."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(port: int) -> bool:
    """Tell whether a server could listen there; what is only closing is no obstacle."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except PermissionError:
            return True  # the job's user may, or will be told that it may not
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port that nobody listens on, and that the system gives to no outgoing connection."""
    below = max(LEAST_PORT + TRIES, _first_ephemeral())
    for _ in range(TRIES):
        port = random.randrange(LEAST_PORT, below)
        if port not in taken and _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_EPHEMERAL


def _address_of(name: str) -> str:
    request = struct.pack("256s", name.encode()[:NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
