"""A blocking connection to one server: requests out, answers in, over a Unix or TCP socket.

The connection is kept between requests. A request is sent again only if the server cannot have
seen it, or if it carries an idempotency key.

The C module `_socket` is used by itself: the module around it takes longer to load than a whole
submission to send, and only TCP needs what it adds.
"""

from __future__ import annotations

import _socket
import os
import stat
import sys

from gpu_scheduler.client.errors import NoServer, TimedOut, Unreadable
from gpu_scheduler.client.http1 import Answer, request_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_scheduler.client.address import Address

REPLY_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 8.0
"""A server that has not begun to answer by then may be frozen: another one is asked."""
_PIECE = 1 << 18


class Connection:
    """One server of those that are named, reached when it is first needed."""

    def __init__(self, candidates: list[Address]) -> None:
        self._candidates = list(candidates)
        self._socket: _socket.socket | None = None
        self._shown: dict[str, str] | None = None
        self.address: Address | None = None

    def close(self) -> None:
        """Let go of the socket; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def has_others(self) -> bool:
        """Whether there is another server to ask."""
        return len(self._candidates) > 1

    def turn(self) -> None:
        """Ask another server from now on, if there is one."""
        self.close()
        self._candidates.append(self._candidates.pop(0))

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[Answer, bytes]:
        """Send a request and wait for the whole answer."""
        answer, pieces = self._begin(method, path, headers, body)
        return answer, self._rest(answer, pieces)

    def _rest(self, answer: Answer, pieces: list[bytes]) -> bytes:
        """The whole body of an answer that has begun."""
        held = self._held()
        try:
            while not answer.done:
                pieces += answer.feed(held.recv(_PIECE))
        except TimeoutError:
            self.close()
            raise TimedOut(f"the server at {self.address} took too long to answer") from None
        except OSError as error:
            self.close()
            raise Unreadable(f"the server at {self.address} broke off: {error}") from error
        except Unreadable:
            self.close()
            raise
        if not answer.keeps_alive:
            self.close()
        return b"".join(pieces)

    def stream(self, path: str, headers: Mapping[str, str]) -> tuple[Answer, Iterator[bytes]]:
        """Send a GET and hand out the body as it comes, on a connection of its own."""
        own = Connection(self._candidates)
        answer, pieces = own._begin("GET", path, headers, None)
        return answer, own._pieces(answer, pieces)

    def upgrade(
        self, path: str, headers: Mapping[str, str]
    ) -> tuple[Answer, _socket.socket | None, bytes]:
        """Ask for another protocol on a connection of its own; None and why when it is refused."""
        own = Connection(self._candidates)
        answer, pieces = own._begin("GET", path, headers, None)
        if answer.status != 101:
            body = own._rest(answer, pieces)
            own.close()
            return answer, None, body
        return answer, own._held(), b""

    def _pieces(self, answer: Answer, first: list[bytes]) -> Iterator[bytes]:
        """The rest of a body; what is followed may be silent for as long as its server is there."""
        held = self._held()
        held.settimeout(None)
        try:
            yield from first
            while not answer.done:
                try:
                    data = held.recv(_PIECE)
                except OSError as error:
                    raise Unreadable(f"the server broke off: {error}") from error
                yield from answer.feed(data)
        finally:
            self.close()

    def _begin(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[Answer, list[bytes]]:
        """Send, and read until the head of the answer is there."""
        kept = self._socket is not None
        is_safe = may_repeat(method, headers)
        others = len(self._candidates) - 1 if is_safe else 0
        while True:
            held = self._connected()
            held.settimeout(PATIENCE_S if others > 0 else REPLY_TIMEOUT_S)
            host = self.address.host_header if self.address else "localhost"
            shown = dict(headers) | self._credentials()
            try:
                held.sendall(request_bytes(method, path, host, shown, body))
                begun = _read_head(held)
                held.settimeout(REPLY_TIMEOUT_S)
                return begun
            except TimeoutError:
                self.close()
                if others > 0:
                    others -= 1
                    self.turn()
                    continue
                raise TimedOut(f"the server at {self.address} took too long to answer") from None
            except (OSError, Unreadable) as error:
                self.close()
                # A kept connection may have been closed by the server while it was idle.
                if kept and is_safe:
                    kept = False
                    continue
                if isinstance(error, Unreadable):
                    raise
                raise Unreadable(f"the server at {self.address} broke off: {error}") from error

    def _credentials(self) -> dict[str, str]:
        """What is shown to a server elsewhere; looked up once."""
        if self.address is None or self.address.path:
            return {}
        if self._shown is None:
            from gpu_scheduler.client.address import headers_for  # noqa: PLC0415

            self._shown = headers_for(self.address)
        return self._shown

    def _held(self) -> _socket.socket:
        if self._socket is None:
            raise NoServer("the connection is closed")
        return self._socket

    def _connected(self) -> _socket.socket:
        if self._socket is None:
            found, self._socket = connect(self._candidates)
            if found is not self.address:
                self.address, self._shown = found, None
            # The one that answers is the first to be asked again.
            place = self._candidates.index(found)
            self._candidates = self._candidates[place:] + self._candidates[:place]
        return self._socket


def may_repeat(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request does no harm when it is sent again to who may have done it."""
    return method == "GET" or "Idempotency-Key" in headers


def connect(candidates: list[Address]) -> tuple[Address, _socket.socket]:
    """The first address that answers, with its socket."""
    tried = []
    for address in candidates:
        try:
            return address, _open(address)
        except OSError as error:
            tried.append(f"{address} ({error.strerror or error})")
        except NoServer as error:
            # One that is not what it should be must not keep us from the others.
            if address.path or len(candidates) == 1:
                raise
            tried.append(f"{address} ({error})")
    raise nobody_answers(candidates, tried)


def nobody_answers(candidates: list[Address], tried: list[str]) -> NoServer:
    """What was asked, and what to do about it: on this machine a server can be started."""
    text = f"no scheduler answers at {' or '.join(tried)}; "
    if all(address.path for address in candidates):
        return NoServer(
            f"{text}start one with 'tgpu up' (for a cluster: 'tgpu server'), or name the one that "
            "you mean with --server or TGPU_SERVER"
        )
    return NoServer(
        f"{text}see whether 'tgpu server' runs there, and whether that is the address of its API "
        "(--server, TGPU_SERVER)"
    )


def check_owner(path: str, uid: int) -> None:
    """Refuse a socket that is neither root's nor one's own: it would get our environment."""
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
        # Blocking, with the kernel's own time limit: a socket with a timeout would be refused at
        # once when the server's backlog is full.
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

    from gpu_scheduler.client.socket_options import notice_loss  # noqa: PLC0415

    opened = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_loss(opened)
    ready = _with_tls(opened, address) if address.tls else opened
    ready.settimeout(REPLY_TIMEOUT_S)
    return ready


def _with_tls(opened: _socket.socket, address: Address) -> _socket.socket:
    import ssl  # noqa: PLC0415

    from gpu_scheduler.client.address import CA_VARIABLE, tls_context  # noqa: PLC0415

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
        raise NoServer(
            f"the server at {address} does not speak TLS as it should: {error}"
        ) from error


def peer_uid(connected: _socket.socket) -> int:
    """Who listens at the other end of a Unix socket, by the kernel's word: pid, uid, gid."""
    credentials = connected.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder, signed=True)


def _read_head(held: _socket.socket) -> tuple[Answer, list[bytes]]:
    answer = Answer()
    pieces: list[bytes] = []
    while not answer.status:
        pieces += answer.feed(held.recv(_PIECE))
    return answer, pieces
