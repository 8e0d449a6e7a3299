"""This machine's network: its address towards the servers, its interfaces and its free ports."""

from __future__ import annotations

import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

SIOCGIFADDR = 0x8915
MAX_NAME_BYTES = 15
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MIN_PORT = 20_000
DEFAULT_FIRST_EPHEMERAL = 32_768
MAX_TRIES = 64
OUTSIDE = (("192.0.2.1", "9"), ("2001:db8::1", "9"))
"""Addresses reserved for documentation: the route to them is the default route."""


def interface_of(address: str) -> str:
    """The interface with this address or host name; "" if there is none, or only loopback."""
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
    """The address that this machine uses towards a server; "" if there is no route to any.

    A loopback address is the last choice. If a server on this machine is configured by its host
    name, other nodes connect to it too, and they could not reach a loopback address: then the
    address of the default route is used.
    """
    fallback = ""
    for target in targets:
        if target.startswith("unix:"):
            continue
        host, _, port = target.rpartition(":")
        host = host.strip("[]")
        found = _source_address(host, port)
        if found and not is_loopback(found):
            return found
        if found and host != "localhost" and not is_loopback(host):
            found = next(filter(None, (_source_address(*place) for place in OUTSIDE)), found)
        fallback = fallback or found
    return fallback


def _source_address(host: str, port: str) -> str:
    """Our address on the route to a host. Connecting a UDP socket sends nothing."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""


def is_loopback(host: str) -> bool:
    """Tell whether this is an address of the machine itself; a name is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(port: int) -> bool:
    """Tell whether a server could listen on a port; closing connections do not count."""
    try:
        _bind(port, reuse=1)
    except PermissionError:
        return True  # the job's user may be allowed, or gets its own error
    except OSError:
        return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A free port below the range that the system uses for outgoing connections."""
    try:
        first_ephemeral = int(EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = DEFAULT_FIRST_EPHEMERAL
    end = max(MIN_PORT + MAX_TRIES, first_ephemeral)
    for _ in range(MAX_TRIES):
        port = random.randrange(MIN_PORT, end)
        if port not in taken:
            with suppress(OSError):
                return _bind(port)
    return _bind(0)


def _bind(port: int, reuse: int = 0) -> int:
    """Bind a port (0: any free one) for a moment, and return it; raises OSError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        probe.bind(("", port))
        return int(probe.getsockname()[1])


def _address_of(name: str) -> str:
    request = struct.pack("256s", name.encode()[:MAX_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
