"""A blocking connection to one server: requests go out, responses come in.

The connection, over a Unix or TCP socket, stays open between requests. A request is sent again only
if the server cannot have received it, or if it is safe to repeat.

It imports the C module `_socket` directly: `socket` takes longer to load than a whole submission,
and only TCP needs it.
"""

from __future__ import annotations

import _socket
import os
import stat
import sys

from gpu_scheduler.client.errors import NoServer, TimedOut, Unreadable
from gpu_scheduler.client.http1 import Answer, request_bytes
from gpu_scheduler.client.retry import is_repeatable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_scheduler.client.address import Address

REPLY_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
FIRST_BYTE_TIMEOUT_S = 8.0
"""A server without a response by then may hang: the next server is tried."""
_PIECE = 1 << 18


class Connection:
    """A connection to the first server that answers, opened at the first request."""

    def __init__(self, candidates: list[Address]) -> None:
        self._candidates = list(candidates)
        self._socket: _socket.socket | None = None
        self._token_headers: dict[str, str] | None = None
        self.address: Address | None = None

    def __str__(self) -> str:
        return str(self.address) if self.address else ",".join(map(str, self._candidates))

    def close(self) -> None:
        """Close the socket; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def has_others(self) -> bool:
        """Tell whether there is another server to try."""
        return len(self._candidates) > 1

    def switch_server(self) -> None:
        """Use the next server from now on, if there is one."""
        self.close()
        self._candidates.append(self._candidates.pop(0))

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[Answer, bytes]:
        """Send a request and wait for the whole response."""
        answer, pieces = self._begin(method, path, headers, body)
        return answer, self._rest(answer, pieces)

    def _rest(self, answer: Answer, pieces: list[bytes]) -> bytes:
        """Return the whole body of a response whose head was read."""
        sock = self._open_socket()
        try:
            while not answer.done:
                pieces += answer.feed(sock.recv(_PIECE))
        except TimeoutError:
            self.close()
            raise TimedOut(f"the server at {self.address} took too long to answer") from None
        except OSError as error:
            self.close()
            raise Unreadable(
                f"the connection to the server at {self.address} was lost: {error}"
            ) from error
        except Unreadable:
            self.close()
            raise
        if not answer.keeps_alive:
            self.close()
        return b"".join(pieces)

    def stream(self, path: str, headers: Mapping[str, str]) -> tuple[Answer, Iterator[bytes]]:
        """Send a GET on a separate connection and yield the body as it arrives."""
        own = Connection(self._candidates)
        answer, pieces = own._begin("GET", path, headers, None)
        return answer, own._pieces(answer, pieces)

    def upgrade(
        self, path: str, headers: Mapping[str, str]
    ) -> tuple[Answer, _socket.socket | None, bytes]:
        """Request a protocol upgrade on a separate connection; None if it is rejected."""
        own = Connection(self._candidates)
        answer, pieces = own._begin("GET", path, headers, None)
        if answer.status != 101:
            body = own._rest(answer, pieces)
            own.close()
            return answer, None, body
        return answer, own._open_socket(), b""

    def _pieces(self, answer: Answer, first: list[bytes]) -> Iterator[bytes]:
        """Yield the rest of a body without a timeout; keep-alive detects a lost server."""
        sock = self._open_socket()
        sock.settimeout(None)
        try:
            yield from first
            while not answer.done:
                try:
                    data = sock.recv(_PIECE)
                except OSError as error:
                    raise Unreadable(f"the connection to the server was lost: {error}") from error
                yield from answer.feed(data)
        finally:
            self.close()

    def _begin(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[Answer, list[bytes]]:
        """Send a request, and read until the head of the response is complete."""
        reused = self._socket is not None
        is_safe = is_repeatable(method, headers)
        others = len(self._candidates) - 1 if is_safe else 0
        while True:
            sock = self._connected()
            sock.settimeout(FIRST_BYTE_TIMEOUT_S if others > 0 else REPLY_TIMEOUT_S)
            host = self.address.host_header if self.address else "localhost"
            all_headers = dict(headers) | self._credentials()
            try:
                sock.sendall(request_bytes(method, path, host, all_headers, body))
                begun = _read_head(sock)
                sock.settimeout(REPLY_TIMEOUT_S)
                return begun
            except TimeoutError:
                self.close()
                if others > 0:
                    others -= 1
                    self.switch_server()
                    continue
                raise TimedOut(f"the server at {self.address} took too long to answer") from None
            except (OSError, Unreadable) as error:
                self.close()
                # The server may have closed an open connection while it was idle.
                if reused and is_safe:
                    reused = False
                    continue
                if isinstance(error, Unreadable):
                    raise
                raise Unreadable(
                    f"the connection to the server at {self.address} was lost: {error}"
                ) from error

    def _credentials(self) -> dict[str, str]:
        """Return the headers with the token for a server on the network; cached."""
        if self.address is None or self.address.path:
            return {}
        if self._token_headers is None:
            from gpu_scheduler.client.credentials import headers_for  # noqa: PLC0415

            self._token_headers = headers_for(self.address)
        return self._token_headers

    def _open_socket(self) -> _socket.socket:
        if self._socket is None:
            raise NoServer("the connection is closed")
        return self._socket

    def _connected(self) -> _socket.socket:
        if self._socket is None:
            found, self._socket = connect(self._candidates)
            if found is not self.address:
                self.address, self._token_headers = found, None
            # The server that answers is the first to be tried next time.
            place = self._candidates.index(found)
            self._candidates = self._candidates[place:] + self._candidates[:place]
        return self._socket


def connect(candidates: list[Address]) -> tuple[Address, _socket.socket]:
    """Return the first address that answers, and its socket."""
    tried = []
    for address in candidates:
        try:
            return address, _open(address)
        except OSError as error:
            tried.append(f"{address} ({error.strerror or error})")
        except NoServer as error:
            # An untrusted server must not prevent the use of the others.
            if address.path or len(candidates) == 1:
                raise
            tried.append(f"{address} ({error})")
    raise no_server_error(candidates, tried)


def no_server_error(candidates: list[Address], tried: list[str]) -> NoServer:
    """Return the error with the tried addresses and what to do."""
    text = f"no scheduler answers at {' or '.join(tried)}; "
    if all(address.path for address in candidates):
        return NoServer(
            f"{text}start one with 'tgpu up' (for a cluster: 'tgpu server'), or name another "
            "address with --server or TGPU_SERVER"
        )
    return NoServer(
        f"{text}check that 'tgpu server' runs there, and that this is the address of its API "
        "(--server, TGPU_SERVER)"
    )


def check_owner(path: str, uid: int) -> None:
    """Raise unless root or the user owns the socket, because requests contain the environment."""
    if uid not in (0, os.geteuid()):
        raise NoServer(
            f"the socket {path} belongs to uid {uid}, neither root nor you; it is not trusted"
        )


def _open(address: Address) -> _socket.socket:
    if not address.path:
        return _open_tcp(address)
    status = os.stat(address.path)  # noqa: PTH116
    if stat.S_ISSOCK(status.st_mode):
        check_owner(address.path, status.st_uid)
    opened = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        # Blocking, with the kernel's time limit: a socket with a Python timeout would fail at once
        # when the server's backlog is full.
        limit = int(CONNECT_TIMEOUT_S).to_bytes(8, sys.byteorder) + bytes(8)
        opened.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, limit)
        opened.connect(address.path)
        opened.settimeout(REPLY_TIMEOUT_S)
        check_owner(address.path, peer_uid(opened))
    except BaseException:
        opened.close()
        raise
    return opened


def _open_tcp(address: Address) -> _socket.socket:
    import socket  # noqa: PLC0415

    from gpu_scheduler.client.keepalive import notice_loss  # noqa: PLC0415

    opened = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_loss(opened)
    ready = _with_tls(opened, address) if address.tls else opened
    ready.settimeout(REPLY_TIMEOUT_S)
    return ready


def _with_tls(opened: _socket.socket, address: Address) -> _socket.socket:
    import ssl  # noqa: PLC0415

    from gpu_scheduler.client.credentials import CA_VARIABLE, tls_context  # noqa: PLC0415

    try:
        # A socket of the `socket` module, which is what TLS wraps.
        return tls_context().wrap_socket(opened, server_hostname=address.host)  # type: ignore[arg-type]
    except ssl.SSLCertVerificationError as error:
        opened.close()
        raise NoServer(
            f"the server at {address} is not trusted: {error.verify_message}; name the file with "
            f"its authority in ${CA_VARIABLE}"
        ) from error
    except OSError as error:
        opened.close()
        raise NoServer(f"the TLS handshake with the server at {address} failed: {error}") from error


def peer_uid(connected: _socket.socket) -> int:
    """Return the uid of the peer of a Unix socket from the kernel (pid, uid, gid)."""
    credentials = connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder, signed=True)


def _read_head(sock: _socket.socket) -> tuple[Answer, list[bytes]]:
    answer = Answer()
    pieces: list[bytes] = []
    while not answer.status:
        pieces += answer.feed(sock.recv(_PIECE))
    return answer, pieces
