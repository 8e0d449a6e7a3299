"""One request and its answer, with as little in between as the hot path can bear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sized
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import structlog

from gpu_scheduler.api.http.errors import TooLarge, TooSlow, UnsupportedMedia, bad_body
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Caller

# --- Keys that stand twice in one JSON object: the reader takes the last of them, silently.
#
# A body and what was read from it in, a refusal that names the key out. Nothing is refused unless
# the key was found. Most bodies are only counted: this is on the way of 1,000 jobs at once.

_ANYTHING = msgspec.json.Decoder()
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_COLONS = (b":", rb"\u003a", rb"\u003A")
"""How one can be written. What only looks like one costs a closer look, and refuses nothing."""


class _Twice(Exception):
    """A key that was found twice; ends the search."""


def check_keys(data: bytes, index: int | None = None) -> None:
    """Refuse a body in which a key stands twice; it must be known to be JSON.

    `index` is its place among others.
    """
    if _lost_some(data, _ANYTHING.decode(data)):
        _refuse(data, index)


def check_keys_of_all(data: bytes, objects: Iterable[Sized]) -> None:
    """The same for a list of objects that was just read from the body, at hardly any cost."""
    if data.count(b":") != sum(map(len, objects)) and _lost_some(data, objects):
        for index, raw in enumerate(_RAW_LIST.decode(data)):
            _refuse(bytes(raw), index)


def _lost_some(data: bytes, read: Any) -> bool:
    """Each key has a colon, and those in strings stay what they are: fewer mean fewer keys."""
    return sum(map(data.count, _COLONS)) > _encode(read).count(b":")


def _refuse(data: bytes, index: int | None) -> None:
    try:
        # Numbers stay text: Python refuses to read some that are too long, and none matters here.
        json.loads(data, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Twice as found:
        error = InvalidRequest(
            f"Invalid request body: '{str(found)[:80]}' stands there twice; give it once"
        )
        error.index = index
        raise error from None


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)


# --- One request and its answer, with as little in between as the hot path can bear.

JSON = b"application/json"
NDJSON = b"application/x-ndjson"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
TRUE_WORDS = frozenset({"1", "true", "yes"})
FALSE_WORDS = frozenset({"0", "false", "no"})
MAX_NUMBER = 2**53
MOST_TEXT = 256
FIRST_PIECE_S = 0.3
LEAST_BYTES_PER_S = 1 << 16
"""A body that comes faster than this is never too slow."""

Receive = Callable[[], Any]
Asked = TypeVar("Asked")
encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The caller has closed the connection; there is nobody to answer."""


class Stream:
    """A body that comes in pieces.

    Its first piece is awaited for a moment before the answer begins, so that a refusal can still
    have a status of its own.
    """

    __slots__ = ("_first", "_source")

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        """Nothing is read yet."""
        self._source = source
        self._first: asyncio.Future[bytes] | None = None

    async def begin(self) -> None:
        """Wait for the first piece, but not for long; raises what the source raises."""
        self._first = asyncio.ensure_future(anext(self._source))
        done, _ = await asyncio.wait({self._first}, timeout=FIRST_PIECE_S)
        if done and not isinstance(self._first.exception(), StopAsyncIteration | None):
            self._first.result()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All pieces, the first one too."""
        try:
            if self._first is not None:
                yield await self._first
            async for piece in self._source:
                yield piece
        except StopAsyncIteration:
            return
        finally:
            await self.close()

    async def close(self) -> None:
        """Read no more."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        closing = getattr(self._source, "aclose", None)
        if closing is not None:
            await closing()


class Response:
    """A status, a body and further headers. With `stream`, the body comes in pieces."""

    __slots__ = ("body", "headers", "media", "status", "stream")

    def __init__(
        self,
        body: bytes = b"",
        *,
        status: int = 200,
        media: bytes = JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        stream: Stream | None = None,
    ) -> None:
        """JSON with status 200, unless told otherwise."""
        self.body = body
        self.status = status
        self.media = media
        self.headers = headers
        self.stream = stream


def json_response(form: Any, *, status: int = 200) -> Response:
    """A form as JSON."""
    return Response(encode(form), status=status)


class Request:
    """A request whose caller is known and whose path was found."""

    __slots__ = (
        "_read",
        "_receive",
        "caller",
        "headers",
        "params",
        "patience",
        "query",
        "request_id",
        "scope",
    )

    def __init__(
        self,
        scope: Any,
        receive: Receive,
        *,
        caller: Caller,
        headers: dict[bytes, bytes],
        params: dict[str, str],
        request_id: str,
        patience: float = 30.0,
    ) -> None:
        """`headers` has the last of each name, `params` what the path names.

        A body is waited for with `patience`, in seconds, and a little longer if it is large.
        """
        self.scope = scope
        self._receive = receive
        self._read: bytes | None = None
        self.caller = caller
        self.headers = headers
        self.params = params
        self.request_id = request_id
        self.patience = patience
        self.query: Query | None = None

    @property
    def media(self) -> bytes:
        """What the body is said to be, without parameters."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    async def body(self, most: int) -> bytes:
        """All of the body, or a refusal as soon as it is known to be too large.

        It can be asked for again.
        """
        if self._read is not None:
            if len(self._read) > most:
                raise _too_large(most)
            return self._read
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.patience) as limit:
                self._read = await self._parts(most, limit)
        except TimeoutError:
            raise TooSlow(
                "the body did not arrive in time; send it at once, or in smaller parts"
            ) from None
        return self._read

    async def _parts(self, most: int, limit: asyncio.Timeout) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            data: bytes = message.get("body", b"")
            size += len(data)
            if size > most:
                raise _too_large(most)
            if not message.get("more_body", False):
                return b"".join((*parts, data)) if parts else data
            parts.append(data)
            due = limit.when()
            if due is not None:
                limit.reschedule(due + len(data) / LEAST_BYTES_PER_S)

    async def read(self, decoder: msgspec.json.Decoder[Asked], most: int) -> Asked:
        """The body as a form."""
        self.expect_media(JSON)
        data = await self.body(most)
        return decode(decoder, data)

    def expect_media(self, *known: bytes) -> None:
        """Refuse bodies of other kinds; also those that a foreign web page may send unasked."""
        if self.media not in known:
            names = " or ".join(name.decode() for name in known)
            found = self.media.decode("latin-1") or "nothing"
            raise UnsupportedMedia(f"the body is said to be {found}; send it as {names}")


def decode(decoder: msgspec.json.Decoder[Asked], data: bytes, *, checks_keys: bool = True) -> Asked:
    """Read JSON into a form, or say what is wrong with it."""
    try:
        read = decoder.decode(data)
        if checks_keys:
            check_keys(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise bad_body(problem, decoder.type, data) from None
    except RecursionError:
        raise InvalidRequest("Invalid request body: it is nested too deeply") from None
    return read


class Query:
    """The parameters behind the question mark. Those that are not known are refused."""

    def __init__(self, query: bytes, known: Iterable[str], most_bytes: int) -> None:
        """Read all of them; one that stands twice could be read in two ways, and is refused."""
        if len(query) > most_bytes:
            raise InvalidRequest(f"the query is longer than {most_bytes} bytes")
        known = tuple(known)
        try:
            pairs = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
            )
        except (UnicodeDecodeError, ValueError):
            raise InvalidRequest("the query cannot be read; encode it as UTF-8 with %") from None
        self._values = dict(pairs)
        if len(self._values) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidRequest(f"parameter '{twice[:80]}' stands there twice; give it once")
        for name in self._values:
            if name not in known:
                allowed = ", ".join(sorted(known)) or "none"
                raise InvalidRequest(f"parameter '{name[:80]}' is not known; known: {allowed}")

    def text(self, name: str, otherwise: str = "") -> str:
        """The value of a parameter; what is absent is `otherwise`, what is too long is refused."""
        value = self._values.get(name, otherwise)
        if len(value) > MOST_TEXT:
            raise InvalidRequest(f"{name} is longer than {MOST_TEXT} characters")
        if "\0" in value:
            raise InvalidRequest(f"{name} holds a NUL character; remove it")
        return value

    def number(self, name: str, otherwise: int, *, least: int = 0, most: int = MAX_NUMBER) -> int:
        """A whole number within bounds."""
        text = self._values.get(name)
        if text is None:
            return otherwise
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise InvalidRequest(f"{name} is '{text[:80]}'; write a whole number")
        number = int(text)
        if not least <= number <= most:
            raise InvalidRequest(f"{name} is {number}; allowed is {least} to {most}")
        return number

    def optional(self, name: str, *, most: int = MAX_NUMBER) -> int | None:
        """A whole number, or nothing."""
        return self.number(name, 0, most=most) if name in self._values else None

    def flag(self, name: str) -> bool:
        """Yes or no; not given means no."""
        if name not in self._values:
            return False
        text = self._values[name].lower()
        if text not in TRUE_WORDS | FALSE_WORDS:
            raise InvalidRequest(f"{name} is '{text[:80]}'; write true or false")
        return text in TRUE_WORDS


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes; send less at once")


# --- Answers go out: whole, or in pieces until the source ends or the caller has gone.

SOCKET_REFUSED = "websocket.http.response"
BREAK_OFF_S = 1.0
"""So long it is waited until a connection that was broken off is closed."""
log = structlog.get_logger("api")

ReceiveMessage = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def send_response(
    response: Response,
    receive: ReceiveMessage,
    send: Send,
    request_id: str,
    *,
    kind: str = "http.response",
    break_off: Callable[[], None] | None = None,
) -> None:
    """Send the status, the headers and the body.

    `break_off` closes the connection of an answer that cannot be completed.
    """
    headers = [
        (b"content-type", response.media),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        *response.headers,
    ]
    if response.media is JSON or response.stream is not None:
        headers.append((b"cache-control", b"no-store"))
    if response.stream is None:
        headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": response.body})
        return
    await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
    sending = asyncio.ensure_future(_send_pieces(response.stream, send, request_id))
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        is_broken = sending.done() and (sending.exception() is not None or not sending.result())
        if is_broken and break_off is not None:
            break_off()
            await asyncio.wait({gone}, timeout=BREAK_OFF_S)
    finally:
        for task in (sending, gone):
            task.cancel()
        await asyncio.gather(sending, gone, return_exceptions=True)
        await response.stream.close()


async def _send_pieces(stream: Stream, send: Send, request_id: str) -> bool:
    """An error in the middle leaves the answer incomplete, so that the caller can tell.

    Says whether it is complete.
    """
    try:
        async with aclosing(stream.pieces()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except SchedulerError as error:
        log.warning("an answer broke off", request_id=request_id, error=str(error))
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


async def _until_gone(receive: ReceiveMessage) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
