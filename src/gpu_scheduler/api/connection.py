"""uvicorn's HTTP protocol, with the peer's identity and bounds on what is read before a request.

Identity is found once for each connection, when it is made: later the peer may have gone, and a
socket that nobody holds open has no owner.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gpu_scheduler.api.callers import UNKNOWN, Peer, peer_of
from gpu_scheduler.api.people import ROOT
from gpu_scheduler.wire.answers import ErrorForm

MOST_HEADERS = 100
MOST_HEADER_BYTES = 64 << 10


class Doors:
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


class Connection(HttpToolsProtocol):
    """One connection; `peer` goes into the state of each of its requests.

    So does `break_off`, which closes it: that is how an answer ends that cannot be completed.
    """

    _header_bytes = 0
    _in_head = False
    _waiting: asyncio.TimerHandle | None = None
    _peer = UNKNOWN

    def __init__(self, config: Config, state: ServerState, doors: Doors) -> None:
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
