"""Ways to the terminal of a job: its socket on this machine, or through the server to any node.

Both are a stream of bytes each way that never blocks: what cannot go out now is kept, and what has
not come yet is nothing. So somebody who does not read holds up neither keys nor output.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Protocol

from gpu_scheduler.client.forms import decoded, job_path
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.keepalive import allow_backlog
from gpu_scheduler.client.websocket import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    Frames,
    accept_of,
    handshake_headers,
    masked,
    new_key,
)
from gpu_scheduler.model.errors import ClusterError, UnknownThing, WrongState

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

PIECE = 1 << 16
CHUNK = 1 << 15
ENOUGH = 1 << 18
"""More than this is not kept: keys, or a file that is sent, wait where they come from."""
AT_ONCE = 8
LAST_WORDS_S = 2.0
ASK_S = 15.0
GONE_S = 50.0
"""A server that has not even answered for so long is gone."""
OVER = 1000
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream(Protocol):
    """What both kinds of sockets can do."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes | bytearray, /) -> int: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Way:
    """The socket of a terminal on this machine. `gone`: nothing more comes, and `why` if known."""

    is_relayed = False

    def __init__(self, connection: Stream) -> None:
        """Takes the socket over."""
        connection.settimeout(0.0)
        self._connection = connection
        self._unsent = bytearray()
        self.gone = False
        self.why = ""

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether it is worth a `flush` when the socket can be written to."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be said for now."""
        return len(self._unsent) > ENOUGH

    def say(self, data: bytes) -> None:
        """Say it, now or as soon as it goes."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what goes. If the other side is gone, its end is what is heard next."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except _LATER:
            return
        except OSError:
            self._unsent.clear()

    def hear(self) -> bytes:
        """What has come by now."""
        try:
            data = self._connection.recv(PIECE)
        except _LATER:
            return b""
        except OSError:
            data = b""
        self.gone = self.gone or not data
        return data

    def wait_s(self) -> float | None:
        """How long there may be nothing to do; None: as long as it takes."""
        return None

    def tend(self) -> None:
        """Look after the connection; to be called from time to time."""

    def finish(self) -> None:
        """Let the last words go out, if they are taken soon, and close."""
        give_up = time.monotonic() + LAST_WORDS_S
        while self._is_waiting() and not self.gone and time.monotonic() < give_up:
            select.select([self.fileno()], [self.fileno()] if self.has_unsent else [], [], 0.1)
            self.hear()
            self.flush()
        self._farewell()
        self._connection.close()

    def _is_waiting(self) -> bool:
        return bool(self._unsent)

    def _farewell(self) -> None:
        """Nothing needs to be said."""


class Relayed(Way):
    """The same through a WebSocket of the server, which says how many messages it takes."""

    is_relayed = True

    def __init__(self, connection: Stream, already: bytes = b"") -> None:
        """`already` is what has come behind the handshake."""
        super().__init__(connection)
        self._frames = Frames()
        self._waiting = bytearray()
        self._credit = 0
        self._heard_at = self._asked_at = time.monotonic()
        self._early = self._understood(already)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be said for now."""
        return len(self._waiting) + len(self._unsent) > ENOUGH

    def say(self, data: bytes) -> None:
        """Say it, now or as soon as it is taken."""
        self._waiting += data
        self.flush()

    def flush(self) -> None:
        """Send what goes and is taken."""
        while self._waiting and self._credit:
            self._credit -= 1
            self._unsent += masked(BINARY, bytes(self._waiting[:CHUNK]))
            del self._waiting[:CHUNK]
        super().flush()

    def hear(self) -> bytes:
        """What has come by now. TLS may have more than the socket shows, so it is asked again."""
        heard, self._early = self._early, bytearray()
        for _ in range(AT_ONCE):
            data = super().hear()
            heard += self._understood(data)
            if not data:
                break
        else:
            while pending := getattr(self._connection, "pending", int)():
                heard += self._understood(self._connection.recv(pending))
        return bytes(heard)

    def _understood(self, data: bytes) -> bytearray:
        heard = bytearray()
        if data:
            self._heard_at = time.monotonic()
        for message in self._frames.feed(data):
            if self._frames.kind == TEXT:
                self._credit += int(message)
            else:
                heard += message
        self._unsent += self._frames.reply
        self._frames.reply.clear()
        if self._frames.closed:
            self.gone = True
            if self._frames.close_code != OVER:
                self.why = self._frames.close_reason
        self.flush()
        return heard

    def wait_s(self) -> float | None:
        """Until the server is to be asked whether it is still there."""
        return ASK_S

    def tend(self) -> None:
        """Ask the server for a sign when it has been silent for a while, and do not wait for ever.

        A machine that lost its power closes no connection.
        """
        now = time.monotonic()
        if now - self._heard_at > GONE_S:
            self.gone, self.why = True, "the server does not answer"
        elif now - max(self._heard_at, self._asked_at) >= ASK_S:
            self._asked_at = now
            self._unsent += masked(PING, b"")
            self.flush()

    def _is_waiting(self) -> bool:
        return bool(self._unsent or self._waiting)

    def _farewell(self) -> None:
        if not self.gone:
            self._unsent += masked(CLOSE, OVER.to_bytes(2, "big"))
            self.flush()


def relayed(client: Client, job: str, member: int = 0) -> Relayed:
    """The way to a job's terminal through the server; raises why there is none."""
    key = new_key()
    path = target(job_path(job, "terminal"), {"member": member or None})
    answer, connected, body = client.connection.upgrade(path, handshake_headers(key))
    if connected is None:
        try:
            decoded(answer.status, body)
        except UnknownThing as error:
            if "no WebSocket" not in str(error):
                raise
            raise WrongState(
                "the server is of a version that brings no terminals from other nodes; update it"
            ) from error
        raise ClusterError("the server does not open a WebSocket; what is between it and you?")
    if answer.headers.get("sec-websocket-accept") != accept_of(key):
        connected.close()
        raise ClusterError("what answers there does not speak WebSocket as it should")
    allow_backlog(connected)
    return Relayed(connected, answer.rest)


def here(path: str, *, patience_s: float = 0.0) -> Way:
    """The way to a terminal on this machine."""
    return Way(_connected(path, time.monotonic() + patience_s))


def _connected(path: str, give_up: float) -> socket.socket:
    """The socket of a job; one that is not there yet is waited for a little."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise ClusterError(
                    f"cannot open the terminal at {path}: {error.strerror or error}; it is open to "
                    "the job's user on the job's node"
                ) from error
            if time.monotonic() > give_up:
                raise WrongState(f"there is no terminal at {path}; has the job ended?") from error
            time.sleep(0.05)
        else:
            return connection
