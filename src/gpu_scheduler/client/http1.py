"""HTTP/1.1 without I/O: bytes come in, the response's head and pieces of its body go out.

The blocking and the asynchronous client both use it. It never waits or reads by itself.
"""

from __future__ import annotations

from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEAD_BYTES = 65_536
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NEAR = 20
DIGITS = frozenset("0123456789")
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
MAX_DIGITS = 15
BAD_SIZE = "the server's response is invalid: the size of its body is not a number"
_NO_BODY = (204, 304)


def quoted(text: str) -> str:
    """Return text percent-encoded for a path or query."""
    return "".join(
        chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in encode_utf8(text)
    )


def encode_utf8(text: str) -> bytes:
    """Return text as UTF-8; raises for undecodable bytes, with the text around them."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - _NEAR) : error.end + _NEAR]
        raise InvalidRequest(
            f"{near!r} contains bytes that are not UTF-8 and cannot be sent; use another name"
        ) from None


def target(path: str, query: Mapping[str, object]) -> str:
    """Return a path with the query parameters that have a value."""
    parts = [
        f"{name}={quoted(str(value))}"
        for name, value in query.items()
        if value is not None and value != ""
    ]
    return f"{path}?{'&'.join(parts)}" if parts else path


def request_bytes(
    method: str, path: str, host: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """Return the bytes of a request; raises for characters that would break a line or the path."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if " " in path or not all(line.isascii() and line.isprintable() for line in lines):
        raise InvalidRequest(
            f"{method} {path[:200]!r} cannot be sent: its path or a header has a space, a control "
            "character or one outside ASCII; write such characters of a path as %20"
        )
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


SETTINGS_FRAME = b"\x04"
"""The type of the first frame of an HTTP/2 server, such as gRPC."""
IS_GRPC_PORT = (
    "this is the gRPC port for agents and programs (api.grpc_port, 9090 by default); the REST API "
    "has another port (api.http_port, 8080 by default)"
)


class Answer:
    """A response being read. `status` is 0 until the head is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._buffer = bytearray()
        self._left: int | None = None
        self._chunked = False
        self._in_trailer = False

    @property
    def keeps_alive(self) -> bool:
        """Tell whether the connection can be used again."""
        return self.done and self.headers.get("connection", "").lower() != "close"

    @property
    def rest(self) -> bytes:
        """The bytes after the response (after 101: those of the new protocol)."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes (empty: end of the stream); returns the next pieces of the body."""
        if not data:
            return self._end()
        self._buffer += data
        if not self.status and not self._read_head():
            return []
        if self.done:
            return []
        return self._chunks() if self._chunked else self._plain()

    def _end(self) -> list[bytes]:
        if self.status and self._left is None and not self._chunked:
            self.done = True
            return []
        raise Unreadable("the connection was lost in the middle of the response; try again")

    def _read_head(self) -> bool:
        if self._buffer[3:4] == SETTINGS_FRAME and self._buffer[:1] == b"\0":
            raise Unreadable(IS_GRPC_PORT)
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Unreadable("the server there does not speak HTTP")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        words = lines[0].split(" ", 2)
        if not words[0].startswith("HTTP/1.") or len(words) < 2 or not _is_status(words[1]):
            raise Unreadable("the server there does not speak HTTP")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(words[1])
        self._prepare_body()
        return True

    def _prepare_body(self) -> None:
        if self.status == 101 or self.status in _NO_BODY:
            self.done = True
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif "content-length" in self.headers:
            self._left = _size(self.headers["content-length"], DIGITS, 10)
            self.done = self._left == 0
        else:
            self.headers["connection"] = "close"

    def _plain(self) -> list[bytes]:
        if self._left is None:
            piece = bytes(self._buffer)
            self._buffer.clear()
        else:
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            self._left -= len(piece)
            self.done = self._left == 0
        return [piece] if piece else []

    def _chunks(self) -> list[bytes]:
        pieces = []
        while not self.done:
            if self._left is None:
                line_end = self._buffer.find(b"\r\n")
                if line_end < 0:
                    if len(self._buffer) > MAX_HEAD_BYTES:
                        raise Unreadable(BAD_SIZE)
                    break
                line = bytes(self._buffer[:line_end])
                del self._buffer[: line_end + 2]
                self._start_chunk(line)
            elif len(self._buffer) < self._left + 2:
                break
            else:
                if self._buffer[self._left : self._left + 2] != b"\r\n":
                    raise Unreadable(BAD_SIZE)
                pieces.append(bytes(self._buffer[: self._left]))
                del self._buffer[: self._left + 2]
                self._left = None
        return pieces

    def _start_chunk(self, line: bytes) -> None:
        if self._in_trailer:
            self.done = not line
            return
        size = _size(line.partition(b";")[0].decode("latin-1").rstrip(), HEX_DIGITS, 16)
        self._in_trailer = size == 0
        self._left = size or None


def _is_status(word: str) -> bool:
    return len(word) == 3 and word.isdecimal() and word[0] != "0"


def _size(text: str, digits: frozenset[str], base: int) -> int:
    """Return a length; Python's own reader would also take signs, spaces and underscores."""
    if not 0 < len(text) <= MAX_DIGITS or not digits.issuperset(text):
        raise Unreadable(BAD_SIZE)
    return int(text, base)
