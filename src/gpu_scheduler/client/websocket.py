"""The WebSocket protocol without I/O: the part of RFC 6455 that a client of our servers needs."""

from __future__ import annotations

import os
from binascii import b2a_base64

from gpu_scheduler.client.errors import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_MESSAGE_BYTES = 16_000_000
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def new_key() -> str:
    """Return a random key for a handshake."""
    return b2a_base64(os.urandom(16), newline=False).decode("ascii")


def handshake_headers(key: str) -> dict[str, str]:
    """Return the headers that request the upgrade."""
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }


def accept_of(key: str) -> str:
    """Return the server's expected response to a key."""
    from hashlib import sha1  # noqa: PLC0415

    digest = sha1(key.encode("ascii") + _MAGIC, usedforsecurity=False).digest()
    return b2a_base64(digest, newline=False).decode("ascii")


class Frames:
    """Decodes frames: bytes come in, whole messages go out; `reply` must be sent to the server.

    `kind` is the type of the last message, text or binary. After a close, `close_code` and
    `close_reason` are those of the server.
    """

    def __init__(self, already: bytes = b"") -> None:
        self.closed = False
        self.close_code = 0
        self.close_reason = ""
        self.kind = TEXT
        self.reply = bytearray()
        self._buffer = bytearray(already)
        self._message = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add received bytes; yields each complete message."""
        self._buffer += data
        while not self.closed:
            frame = self._next_frame()
            if frame is None:
                return
            final, kind, payload = frame
            if kind == PING:
                self.reply += masked(PONG, payload)
            elif kind == CLOSE:
                self.closed = True
                self.close_code = int.from_bytes(payload[:2], "big")
                self.close_reason = payload[2:].decode("utf-8", "replace")
                self.reply += masked(CLOSE, payload[:2])
            elif kind != PONG:
                self.kind = kind or self.kind
                self._message += payload
                if final:
                    message = bytes(self._message)
                    self._message.clear()
                    yield message

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start], "big")
        if buffer[1] & 0x80 or length + len(self._message) > _MAX_MESSAGE_BYTES:
            raise Unreadable("the server sent an invalid WebSocket message")
        if len(buffer) < start + length:
            return None
        payload = bytes(buffer[start : start + length])
        final, kind = bool(buffer[0] & 0x80), buffer[0] & 0x0F
        del buffer[: start + length]
        return final, kind, payload


def masked(kind: int, payload: bytes) -> bytes:
    """Return a frame of a client, which must be masked."""
    key = os.urandom(4)
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + size.to_bytes(8, "big")
    mask = (key * (size // 4 + 1))[:size]
    hidden = int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")
    return head + key + hidden.to_bytes(size, "big")
