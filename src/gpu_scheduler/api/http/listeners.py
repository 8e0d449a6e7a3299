"""HTTP listeners: a TCP port, a Unix socket and a port for metrics, on uvicorn's protocol.

Sockets are bound before anything else of a server starts, so that a port in use is a clear message
and has no other effect. Each connection is identified once, when it is accepted: later the peer may
have closed its socket, which then has no owner. The caller of `serve` handles signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import stat
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gpu_scheduler.api.auth.accounts import ROOT
from gpu_scheduler.api.auth.peer_credentials import UNKNOWN, Peer, peer_of
from gpu_scheduler.api.http.app import Applications
from gpu_scheduler.api.http.errors import ErrorForm
from gpu_scheduler.api.http.rate_limit import FairThreads
from gpu_scheduler.api.http.request import AsgiApp
from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.client.keepalive import keep_alive
from gpu_scheduler.model.errors import ClusterError

MOST_HEADERS = 100
MOST_FILES = 1 << 20
"""Taken for the limit of open files where there is none."""
MOST_HEADER_BYTES = 64 << 10


def most_open_files() -> int:
    """The files and connections that this process may have open (RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft > 0 else MOST_FILES


class ConnectionLimit:
    """How many connections each peer may hold, and how long a request header may take.

    The `total` of all connections leaves open files for the database, for root and for the user of
    the server. Another peer may have half of it at most.
    """

    def __init__(self, most: int, header_timeout_s: float, total: int | None = None) -> None:
        """Start without connections."""
        self._total = most_open_files() // 4 if total is None else total
        self.most = most
        self.header_timeout_s = header_timeout_s
        self._open: dict[object, int] = {}
        self._count = 0

    def add(self, peer: Peer) -> bool:
        """Count a connection; return False if the peer, or all together, have too many."""
        key = _key(peer)
        self._open[key] = self._open.get(key, 0) + 1
        self._count += 1
        if peer.uid == ROOT:
            return True
        if peer.uid == os.geteuid():
            return self._open[key] <= self.most
        most = min(self.most, self._total // 2)
        return self._open[key] <= most and self._count <= self._total

    def remove(self, peer: Peer) -> None:
        """Count a closed connection."""
        key = _key(peer)
        self._open[key] -= 1
        self._count -= 1
        if not self._open[key]:
            del self._open[key]


class HttpConnection(HttpToolsProtocol):
    """One connection, with bounds on what it may send before a request is complete.

    The state of each of its requests has `peer`, and `abort`, which closes the connection of a
    response that cannot be completed.
    """

    _header_bytes = 0
    _in_header = False
    _header_timer: asyncio.TimerHandle | None = None
    _peer = UNKNOWN

    def __init__(self, config: Config, state: ServerState, limit: ConnectionLimit) -> None:
        """All connections share the `limit`."""
        super().__init__(config, state, {})
        self._limit = limit

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the peer."""
        super().connection_made(transport)
        self._peer = _peer(transport)
        self.app_state = {"peer": self._peer, "abort": transport.close}
        if not self._limit.add(self._peer):
            self._reject(429, "too_many", "too many connections are open; close some")
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._limit.remove(self._peer)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; an incomplete header starts the timeout."""
        super().data_received(data)
        if self._in_header and self._header_timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start to count the bytes of a header."""
        super().on_message_begin()
        self._header_bytes = 0
        self._in_header = True

    def on_headers_complete(self) -> None:
        """Stop the timeout of the header."""
        self._in_header = False
        self._stop_timer()
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            self._limit.header_timeout_s,
            self._reject,
            408,
            "too_slow",
            "the request did not arrive in time",
        )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MOST_HEADER_BYTES or len(self.headers) >= MOST_HEADERS:
            # The parser stops at any error of its callbacks and then calls `send_400_response`.
            raise OverflowError

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the message is not shown
        """Send an error as JSON for a request that cannot be parsed."""
        if self._header_bytes > MOST_HEADER_BYTES or len(self.headers) >= MOST_HEADERS:
            self._reject(431, "headers_too_large", "the headers are too large")
        else:
            self._reject(400, "invalid_request", "this is not a valid HTTP request")

    def _reject(self, status: int, code: str, message: str) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorForm(error=message, code=code))
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


BACKLOG = 1024
KEEP_ALIVE_S = 75
MOST_SOCKET_PATH = 107
MOST_SOCKET_MESSAGE = 1 << 16
SOCKET_STALLED_S = 60.0
"""A WebSocket peer that does not answer a ping for so long is gone; a slow reader may be late."""
GRACE_S = 3.0
HANDSHAKE_S = 10.0
PROBE_S = 3.0
"""How long the program on a port in use may take to answer as a server."""
MOST_HEALTH_BYTES = 1 << 20


class CannotListen(ClusterError):
    """An address cannot be bound."""

    code = "cannot_listen"
    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where to listen; None: not there. Port 0 lets the system choose a port."""

    http: tuple[str, int] | None = ("127.0.0.1", 8080)
    unix: Path | None = None
    metrics: tuple[str, int] | None = ("127.0.0.1", 9091)


class BoundSockets:
    """The bound sockets of a server, until `close`."""

    def __init__(self, addresses: Addresses) -> None:
        """Bind all addresses, or none."""
        self.unix_path = addresses.unix
        self.http: socket.socket | None = None
        self.metrics: socket.socket | None = None
        self.unix: socket.socket | None = None
        try:
            if addresses.http is not None:
                self.http = _bind_port(*addresses.http, "http_port")
            if addresses.metrics is not None:
                self.metrics = _bind_port(*addresses.metrics, "metrics_port")
            if addresses.unix is not None:
                self.unix = _bind_path(addresses.unix)
        except ClusterError:
            self.close()
            raise

    @property
    def http_port(self) -> int | None:
        """The port of the HTTP listener."""
        return None if self.http is None else int(self.http.getsockname()[1])

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics listener."""
        return None if self.metrics is None else int(self.metrics.getsockname()[1])

    def close(self) -> None:
        """Close the sockets."""
        for bound in (self.http, self.metrics, self.unix):
            if bound is not None:
                bound.close()
        if self.unix is not None and self.unix_path is not None:
            self.unix_path.unlink(missing_ok=True)


class ApiServer:
    """Serves the apps on bound sockets."""

    def __init__(
        self,
        sockets: BoundSockets,
        *,
        limit: ConnectionLimit | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """With `tls`, ports serve HTTPS; the Unix socket never does."""
        self.sockets = sockets
        self._limit = limit or ConnectionLimit(Bounds().connections, Bounds().receive_seconds)
        self._tls = tls
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    async def start(self, applications: Applications) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        for bound, app in (
            (self.sockets.http, applications.main),
            (self.sockets.unix, applications.main),
            (self.sockets.metrics, applications.metrics),
        ):
            if bound is None:
                continue
            config = _config(app)

            def connection(config: Config = config) -> HttpConnection:
                return HttpConnection(config, self._state, self._limit)

            if bound.family == socket.AF_UNIX:
                server = await loop.create_unix_server(connection, sock=bound, backlog=BACKLOG)
            else:
                server = await loop.create_server(
                    connection,
                    sock=bound,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
                )
            self._servers.append(server)

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Accept no more requests, let running ones finish, and close."""
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
        self.sockets.close()


async def serve(
    applications: Applications,
    sockets: BoundSockets,
    *,
    limit: ConnectionLimit | None = None,
    tls: ssl.SSLContext | None = None,
) -> ApiServer:
    """Start to serve on bound sockets."""
    asyncio.get_running_loop().set_default_executor(FairThreads())
    server = ApiServer(sockets, limit=limit, tls=tls)
    await server.start(applications)
    return server


def _config(app: AsgiApp) -> Config:
    config = Config(
        app,
        interface="asgi3",
        http=HttpConnection,
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the kernel identifies the peer, never a header
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ws_max_size=MOST_SOCKET_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_timeout=SOCKET_STALLED_S,
    )
    config.load()
    return config


def _bind_port(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keep_alive(bound)
        bound.bind((host, port))
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except (OSError, OverflowError) as error:
        bound.close()
        raise CannotListen(_describe(error, host, port, setting)) from None
    return bound


def _describe(error: Exception, host: str, port: int, setting: str) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        other, stop = "program", "stop that one"
        if _is_tgpu_server(host, port):
            other, stop = "tgpu server", "stop that one, as with 'tgpu down'"
        return (
            f"port {port} on {host} is in use by another {other}; {stop}, "
            f"or choose another port (api.{setting})"
        )
    if number == errno.EACCES:
        return f"port {port} on {host} may only be used by root; choose one above 1023"
    return f"cannot listen on {host}:{port}: {error}"


def _is_tgpu_server(host: str, port: int) -> bool:
    """Whether the port answers with the health of a server; a port with TLS does not."""
    connection = HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/health")
        health = msgspec.json.decode(connection.getresponse().read(MOST_HEALTH_BYTES))
    except (OSError, HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    finally:
        connection.close()
    return isinstance(health, dict) and {"uptime_seconds", "checks"} <= health.keys()


def _bind_path(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MOST_SOCKET_PATH:
        raise CannotListen(
            f"the socket's path {path} is longer than {MOST_SOCKET_PATH} bytes; "
            "choose a shorter directory"
        )
    _clear_path(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(os.fspath(path))
        # Any user may connect: the kernel identifies the caller.
        path.chmod(0o666)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {path}: {error}") from None
    return bound


def _clear_path(path: Path) -> None:
    """Remove the socket of a server that has ended; fail if another server listens on it."""
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
