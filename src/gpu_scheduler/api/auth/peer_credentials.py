"""Peer credentials: the kernel identifies the caller of a Unix socket or loopback connection.

For a Unix socket the kernel names the peer (SO_PEERCRED). For loopback it names the owner of the
socket at the other end (sock_diag, or /proc/net/tcp). A socket that its process has closed shows as
root's in the kernel's tables, so only open sockets count.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.model.identity import Caller, Role

OPEN_STATES = frozenset({1, 4, 5, 8})
"""TCP states in which a process holds the socket: established, fin_wait1, fin_wait2, close_wait."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    uid: int | None
    gid: int | None = None
    unix: bool = False
    host: str = ""

    @property
    def local(self) -> bool:
        """Whether it is on this machine."""
        return self.unix or self.uid is not None or _is_loopback(self.host)


UNKNOWN = Peer(uid=None)


def peer_in(scope: Any) -> Peer:
    """Return the peer of a request, which its listener has put into the ASGI scope."""
    peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
    return peer


class Authenticator(Protocol):
    """One way to authenticate a caller.

    If `caller` raises `LookupPending`, it is called again with the same arguments later.
    """

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller, or None if this authenticator does not know it."""
        ...


class PeerAuthenticator:
    """Authenticates callers by the uid of their connection."""

    def __init__(self, directory: Directory) -> None:
        """The directory has the accounts and their tenants."""
        self._directory = directory

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:  # noqa: ARG002
        """Return the caller for the peer's uid."""
        if peer.uid is None:
            return None
        return self._directory.caller(peer.uid, peer.gid, peer.host)


class OpenAuthenticator:
    """Makes every local caller an admin, for `auth: off`. Jobs still run as the peer's account."""

    def __init__(self, peers: PeerAuthenticator) -> None:
        """Callers that `peers` does not know stay unknown."""
        self._peers = peers

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the peer's account as an admin."""
        caller = self._peers.caller(peer, headers)
        return None if caller is None else replace(caller, role=Role.ADMIN)


def _is_loopback(host: str) -> bool:
    try:
        return _plain(host).is_loopback
    except ValueError:
        return False


def peer_of(connection: socket.socket) -> Peer:
    """Identify the other end of a connection that was just accepted."""
    if connection.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, gid = struct.unpack("3i", packed)
        return Peer(uid=uid & 0xFFFFFFFF, gid=gid & 0xFFFFFFFF, unix=True, host="unix")
    try:
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:
        return Peer(uid=None)
    return Peer(uid=owner_of_socket(here[:2], there[:2]), host=there[0])


def owner_of_socket(here: tuple[str, int], there: tuple[str, int]) -> int | None:
    """Return the uid that owns the far end of a loopback connection; None if unknown."""
    try:
        far = _plain(there[0])
        near = _plain(here[0])
    except ValueError:
        return None
    if not far.is_loopback or far.version != near.version:
        return None
    return _OWNERS.find((far, there[1]), (near, here[1]))


class _SocketOwners:
    """Finds socket owners with sock_diag, or in /proc/net where sock_diag is not available."""

    def __init__(self) -> None:
        self._has_sock_diag = False

    def find(self, far: _End, near: _End) -> int | None:
        try:
            uid = _query_sock_diag(far, near)
        except OSError as error:
            # ENOENT means "no such socket" or "no sock_diag"; the latter only until it has worked.
            if self._has_sock_diag and error.errno == errno.ENOENT:
                return None
            return _read_table(far, near)
        self._has_sock_diag = True
        return uid


_OWNERS = _SocketOwners()
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_End = tuple[_Address, int]


def _plain(text: str) -> _Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


# sock_diag: its cost does not depend on the number of sockets

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_COOKIE = struct.pack("=II", 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_STATE = _HEADER.size + 1
_ANSWER_OWNER = struct.Struct("=II")
_ANSWER_OWNER_AT = _HEADER.size + 4 + 48 + 12
_TIMEOUT_S = 0.2


def _query_sock_diag(far: _End, near: _End) -> int | None:
    """Query sock_diag for the socket whose own end is `far`; OSError where it is missing."""
    family = socket.AF_INET if far[0].version == 4 else socket.AF_INET6
    question = b"".join(
        (
            _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF),
            _PORTS.pack(far[1], near[1]),
            far[0].packed.ljust(16, b"\0"),
            near[0].packed.ljust(16, b"\0"),
            struct.pack("=I", 0),
            _NO_COOKIE,
        )
    )
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        netlink.sendto(header + question, (0, 0))
        reply = netlink.recv(8192)
    kind = _HEADER.unpack_from(reply)[1]
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", reply, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    if kind != _SOCK_DIAG_BY_FAMILY or len(reply) < _ANSWER_OWNER_AT + _ANSWER_OWNER.size:
        return None
    uid, inode = _ANSWER_OWNER.unpack_from(reply, _ANSWER_OWNER_AT)
    is_open = reply[_ANSWER_STATE] in OPEN_STATES
    return uid if is_open and inode else None


# /proc/net: the whole table


def _read_table(far: _End, near: _End, root: Path = Path("/proc/net")) -> int | None:
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if int(parts[3], 16) not in OPEN_STATES or parts[9] == "0":
                continue
            if _table_end(parts[1]) == far and _table_end(parts[2]) == near:
                return int(parts[7])
    return None


def _table_end(text: str) -> _End:
    """Parse `0100007F:1F90`: address words in the machine's byte order, the port in hex."""
    address, _, port = text.partition(":")
    words = bytes.fromhex(address)
    packed = b"".join(
        struct.pack("!I", struct.unpack("=I", words[i : i + 4])[0]) for i in range(0, len(words), 4)
    )
    return _plain(str(ipaddress.ip_address(packed))), int(port, 16)
