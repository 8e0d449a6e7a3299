"""Who is calling: the kernel is asked, the request is not.

Over a Unix socket the kernel names the peer. Over loopback it knows who owns the socket at the
other end. A socket without an owner (its process has closed it) shows as root's in the kernel's
tables, so only sockets that somebody still holds open count.
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
from typing import Protocol

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.model.identity import Caller, Role

OPEN_STATES = frozenset({1, 4, 5, 8})
"""Established, or being closed by one side while its owner still has it: fin_wait, close_wait."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as the kernel describes it."""

    uid: int | None
    gid: int | None = None
    unix: bool = False
    host: str = ""

    @property
    def local(self) -> bool:
        """Tell whether it is on this machine."""
        return self.unix or self.uid is not None or _is_loopback(self.host)


UNKNOWN = Peer(uid=None)


class Authenticator(Protocol):
    """One way to find out who is calling. None means that it cannot tell.

    It is asked again, with the same, after it has raised `LookupPending` and there is an answer.
    """

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Who it is."""
        ...


class PeerAuthenticator:
    """Believes the kernel about the account at the other end."""

    def __init__(self, people: Directory) -> None:
        """Who these accounts are, and where they belong, is asked of the directory."""
        self._people = people

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:  # noqa: ARG002
        """The account of the peer's uid; without a uid, nobody."""
        if peer.uid is None:
            return None
        return self._people.caller(peer.uid, peer.gid, peer.host)


class OpenAuthenticator:
    """Lets everybody do everything, for `auth: off`: as the account that the kernel names."""

    def __init__(self, kernel: PeerAuthenticator) -> None:
        """Jobs still need a user; whom the kernel does not know is nobody."""
        self._kernel = kernel

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        """The account, as an admin."""
        caller = self._kernel.caller(peer, headers)
        return None if caller is None else replace(caller, role=Role.ADMIN)


def _is_loopback(host: str) -> bool:
    try:
        return _plain(host).is_loopback
    except ValueError:
        return False


def peer_of(connection: socket.socket) -> Peer:
    """The other end of a connection that was just accepted."""
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
    """The uid behind the far end of a loopback connection; None if the kernel does not say."""
    try:
        far = _plain(there[0])
        near = _plain(here[0])
    except ValueError:
        return None
    if not far.is_loopback or far.version != near.version:
        return None
    return _OWNERS.find((far, there[1]), (near, here[1]))


class _SocketOwners:
    """Asks the kernel about one socket, or reads its whole table where it cannot be asked."""

    def __init__(self) -> None:
        self._can_ask = False

    def find(self, far: _End, near: _End) -> int | None:
        try:
            uid = _ask_kernel(far, near)
        except OSError as error:
            # "No such socket" and "nobody here to ask" are the same error, until it has worked.
            if self._can_ask and error.errno == errno.ENOENT:
                return None
            return _read_table(far, near)
        self._can_ask = True
        return uid


_OWNERS = _SocketOwners()
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_End = tuple[_Address, int]


def _plain(text: str) -> _Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


# --- asking about one socket: takes the same time however many there are

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


def _ask_kernel(far: _End, near: _End) -> int | None:
    """Ask sock_diag for the socket whose own end is `far`; raises OSError where that is missing."""
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


# --- reading the whole table, where the kernel cannot be asked


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
    """Read `0100007F:1F90`: words in the machine's byte order, the port in plain hex."""
    address, _, port = text.partition(":")
    words = bytes.fromhex(address)
    packed = b"".join(
        struct.pack("!I", struct.unpack("=I", words[i : i + 4])[0]) for i in range(0, len(words), 4)
    )
    return _plain(str(ipaddress.ip_address(packed))), int(port, 16)
