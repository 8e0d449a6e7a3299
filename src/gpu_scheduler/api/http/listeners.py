"""Listen: a TCP port, a Unix socket and a port for metrics, in an event loop that exists.

Addresses are taken first, before anything else of a server starts, so that a port in use is a clear
message and nothing more. Signals are left to whoever runs the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gpu_scheduler.api.application import Applications
from gpu_scheduler.api.auth.accounts import ROOT
from gpu_scheduler.api.auth.peer_credentials import UNKNOWN, Peer, peer_of
from gpu_scheduler.api.ha.gate import AsgiApp
from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.client.socket_options import keep_alive
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire.answers import ErrorForm

# --- uvicorn's HTTP protocol, with the peer's identity and bounds on what is read before a request.
#
# Identity is found once for each connection, when it is made: later the peer may have gone, and a
# socket that nobody holds open has no owner.

MOST_HEADERS = 100
MOST_HEADER_BYTES = 64 << 10


class ConnectionLimit:
    """How many connections each caller may hold, and how long the head of a request may take."""

    def __init__(self, most: int, patience: float) -> None:
        """Nobody has come in yet."""
        self.most = most
        self.patience = patience
        self._inside: dict[object, int] = {}

    def enter(self, peer: Peer) -> bool:
        """Count one more; False if that is too many."""
        key = _key(peer)
        self._inside[key] = self._inside.get(key, 0) + 1
        return self._inside[key] <= self.most or peer.uid == ROOT

    def leave(self, peer: Peer) -> None:
        """Count one less."""
        key = _key(peer)
        self._inside[key] -= 1
        if not self._inside[key]:
            del self._inside[key]


class HttpConnection(HttpToolsProtocol):
    """One connection; `peer` goes into the state of each of its requests.

    So does `break_off`, which closes it: that is how an answer ends that cannot be completed.
    """

    _header_bytes = 0
    _in_head = False
    _waiting: asyncio.TimerHandle | None = None
    _peer = UNKNOWN

    def __init__(self, config: Config, state: ServerState, doors: ConnectionLimit) -> None:
        """`doors` is shared by all connections."""
        super().__init__(config, state, {})
        self._doors = doors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who is at the other end."""
        super().connection_made(transport)
        self._peer = _peer(transport)
        self.app_state = {"peer": self._peer, "break_off": transport.close}
        if not self._doors.enter(self._peer):
            self._refuse(429, "too_many", "too many connections are open; close some")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end has gone."""
        self._doors.leave(self._peer)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came; a head that is not complete is waited for, but not for ever."""
        super().data_received(data)
        if self._in_head and self._waiting is None:
            self._wait()

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._header_bytes = 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self._doors.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._refuse(408, "too_slow", "the request did not arrive in time")

    def on_url(self, url: bytes) -> None:
        """Take in a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MOST_HEADER_BYTES or len(self.headers) >= MOST_HEADERS:
            # The parser stops at any error of its callbacks, and then asks for an answer.
            raise OverflowError

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - there is one case more here
        """What cannot be read gets an answer in our form too."""
        if self._header_bytes > MOST_HEADER_BYTES or len(self.headers) >= MOST_HEADERS:
            self._refuse(431, "headers_too_large", "the headers are larger than is allowed")
        else:
            self._refuse(400, "invalid_request", "this is not an HTTP request that can be read")

    def _refuse(self, status: int, code: str, sentence: str) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorForm(error=sentence, code=code))
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()


def _key(peer: Peer) -> object:
    return peer.host if peer.uid is None else peer.uid


def _peer(transport: asyncio.Transport) -> Peer:
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None:
        return UNKNOWN
    try:
        return peer_of(connection)
    except OSError:
        return UNKNOWN


# --- Listen: a TCP port, a Unix socket and a port for metrics, in an event loop that exists.

BACKLOG = 1024
KEEP_ALIVE_S = 75
MOST_SOCKET_PATH = 107
MOST_SOCKET_MESSAGE = 1 << 16
SOCKET_STALLED_S = 60.0
"""Who does not even answer for so long is gone; one who reads slowly may be held up for a while."""
GRACE_S = 3.0
HANDSHAKE_S = 10.0


class CannotListen(ClusterError):
    """An address cannot be taken."""

    code = "cannot_listen"
    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where to listen; None means not there. Port 0 lets the system choose."""

    http: tuple[str, int] | None = ("127.0.0.1", 8080)
    unix: Path | None = None
    metrics: tuple[str, int] | None = ("127.0.0.1", 9091)


class BoundSockets:
    """Addresses that were taken. They belong to whoever has this, until `close`."""

    def __init__(self, addresses: Addresses) -> None:
        """Take all of them, or none."""
        self.unix_path = addresses.unix
        self.http: socket.socket | None = None
        self.metrics: socket.socket | None = None
        self.unix: socket.socket | None = None
        try:
            if addresses.http is not None:
                self.http = _take_port(*addresses.http, "http_port")
            if addresses.metrics is not None:
                self.metrics = _take_port(*addresses.metrics, "metrics_port")
            if addresses.unix is not None:
                self.unix = _take_path(addresses.unix)
        except ClusterError:
            self.close()
            raise

    @property
    def http_port(self) -> int | None:
        """The port that was chosen."""
        return None if self.http is None else int(self.http.getsockname()[1])

    @property
    def metrics_port(self) -> int | None:
        """The port that was chosen."""
        return None if self.metrics is None else int(self.metrics.getsockname()[1])

    def close(self) -> None:
        """Give the addresses back."""
        for taken in (self.http, self.metrics, self.unix):
            if taken is not None:
                taken.close()
        if self.unix is not None and self.unix_path is not None:
            self.unix_path.unlink(missing_ok=True)


class ApiServer:
    """Connections that are open, and the sockets that they come from."""

    def __init__(
        self,
        listening: BoundSockets,
        *,
        doors: ConnectionLimit | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Nothing is served yet. With `tls`, ports speak HTTPS; the Unix socket never does."""
        self.listening = listening
        self._doors = doors or ConnectionLimit(Bounds().connections, Bounds().receive_seconds)
        self._tls = tls
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    async def start(self, applications: Applications) -> None:
        """Answer from now on."""
        loop = asyncio.get_running_loop()
        listening = self.listening
        for taken, application in (
            (listening.http, applications.main),
            (listening.unix, applications.main),
            (listening.metrics, applications.metrics),
        ):
            if taken is None:
                continue
            config = _config(application)

            def connection(config: Config = config) -> HttpConnection:
                return HttpConnection(config, self._state, self._doors)

            if taken.family == socket.AF_UNIX:
                server = await loop.create_unix_server(connection, sock=taken, backlog=BACKLOG)
            else:
                limit = None if self._tls is None else HANDSHAKE_S
                server = await loop.create_server(
                    connection,
                    sock=taken,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=limit,
                )
            self._servers.append(server)

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Take no more requests, let those under way end, and close."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = [task for task in self._state.tasks if not task.done()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.close()
        self.listening.close()


async def serve(
    applications: Applications,
    listening: BoundSockets,
    *,
    doors: ConnectionLimit | None = None,
    tls: ssl.SSLContext | None = None,
) -> ApiServer:
    """Serve on addresses that were taken."""
    server = ApiServer(listening, doors=doors, tls=tls)
    await server.start(applications)
    return server


def _config(application: AsgiApp) -> Config:
    config = Config(
        application,
        interface="asgi3",
        http=HttpConnection,
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # who calls is what the kernel says, never what a header says
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ws_max_size=MOST_SOCKET_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_timeout=SOCKET_STALLED_S,
    )
    config.load()
    return config


def _take_port(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keep_alive(taken)
        taken.bind((host, port))
        taken.listen(BACKLOG)
        taken.setblocking(False)
    except (OSError, OverflowError) as error:
        taken.close()
        raise CannotListen(_why_not(error, host, port, setting)) from None
    return taken


def _why_not(error: Exception, host: str, port: int, setting: str) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program; stop that one, "
            f"or choose another port (api.{setting})"
        )
    if number == errno.EACCES:
        return f"port {port} on {host} may only be used by root; choose one above 1023"
    return f"cannot listen on {host}:{port}: {error}"


def _take_path(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MOST_SOCKET_PATH:
        raise CannotListen(
            f"the socket's path {path} is longer than {MOST_SOCKET_PATH} bytes; "
            "choose a shorter directory"
        )
    _clear_path(path)
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        taken.bind(os.fspath(path))
        # Everybody may call: who it is, and what that one may do, is found out by the kernel.
        path.chmod(0o666)
        taken.listen(BACKLOG)
        taken.setblocking(False)
    except OSError as error:
        taken.close()
        raise CannotListen(f"cannot listen on {path}: {error}") from None
    return taken


def _clear_path(path: Path) -> None:
    """Remove a socket that a server left behind; refuse one that somebody listens on."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListen(f"cannot look at {path}: {error}") from None
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} exists and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno not in {errno.ECONNREFUSED, errno.ENOENT}:
                raise CannotListen(f"{path} is in use: {error}") from None
        else:
            raise CannotListen(f"another server listens on {path}; stop that one first")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
