"""uvicorn's HTTP protocol, with the peer's identity and bounds on what is read before a request.

Identity is found once for each connection, when it is made: later the peer may have gone, and a
socket that nobody holds open has no owner.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpu_scheduler.api.callers import Peer, peer_of
from gpu_scheduler.wire.answers import ErrorForm

MOST_HEADERS = 100
MOST_HEADER_BYTES = 64 << 10
UNKNOWN = Peer(uid=None)


class Connection(HttpToolsProtocol):
    """One connection; `peer` goes into the state of each of its requests."""

    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who is at the other end."""
        super().connection_made(transport)
        self.app_state = {"peer": _peer(transport)}

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._header_bytes = 0

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


def _peer(transport: asyncio.Transport) -> Peer:
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None:
        return UNKNOWN
    try:
        return peer_of(connection)
    except OSError:
        return UNKNOWN
