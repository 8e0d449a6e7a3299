"""One HTTP request and its response: body, query, headers in; a whole or streamed body out.

Bodies are bounded in size and time. JSON with a repeated key and unknown query parameters are
rejected, because a lenient reader would silently drop what the caller meant. This is the hot path
of 1,000 submissions at once, so nothing here does more than it must.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sized
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
import structlog

from gpu_scheduler.api.http.errors import TooLarge, TooSlow, UnsupportedMedia, bad_body
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Caller

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


# Repeated keys in a JSON object
#
# The decoder silently takes the last of them. The check counts colons first, which costs almost
# nothing; only a body with too many is parsed again to find the repeated key.

encode = msgspec.json.Encoder().encode
_ANYTHING = msgspec.json.Decoder()
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_COLONS = (b":", rb"\u003a", rb"\u003A")
"""The spellings of a colon. A false match only costs a second parse."""


class _RepeatedKey(Exception):
    """Ends the search at the first repeated key."""


def check_keys(data: bytes, index: int | None = None) -> None:
    """Reject valid JSON that repeats a key. `index` is the position of the job in a list."""
    if _lost_keys(data, _ANYTHING.decode(data)):
        _reject_repeated_key(data, index)


def check_keys_of_all(data: bytes, objects: Iterable[Sized]) -> None:
    """Reject a list that repeats a key in one of its `objects`, which were decoded from `data`."""
    if data.count(b":") != sum(map(len, objects)) and _lost_keys(data, objects):
        for index, raw in enumerate(_RAW_LIST.decode(data)):
            _reject_repeated_key(bytes(raw), index)


def _lost_keys(data: bytes, decoded: Any) -> bool:
    """Whether `decoded` has fewer colons, and so fewer keys, than `data`."""
    return sum(map(data.count, _COLONS)) > encode(decoded).count(b":")


def _reject_repeated_key(data: bytes, index: int | None) -> None:
    try:
        # Numbers stay text: Python rejects very long ones, and their values do not matter here.
        json.loads(data, object_pairs_hook=_find_repeated, parse_int=str, parse_float=str)
    except _RepeatedKey as found:
        error = InvalidRequest(
            f"Invalid request body: '{str(found)[:80]}' is given twice; give it once"
        )
        error.index = index
        raise error from None


def _find_repeated(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedKey(name)
        seen.add(name)


# Requests and responses

JSON = b"application/json"
NDJSON = b"application/x-ndjson"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
TRUE_WORDS = frozenset({"1", "true", "yes"})
FALSE_WORDS = frozenset({"0", "false", "no"})
MAX_NUMBER = 2**53
MOST_TEXT = 256
FIRST_CHUNK_S = 0.3
LEAST_BYTES_PER_S = 1 << 16
"""A body that arrives faster than this never times out."""

Body = TypeVar("Body")
First = TypeVar("First")
Second = TypeVar("Second")
Form = TypeVar("Form", bound=msgspec.Struct)


class ClientGone(Exception):
    """The client has closed the connection."""


class Stream:
    """A response body that is sent in chunks.

    The first chunk is awaited for a moment before the response begins, so that an error can still
    have its own status.
    """

    __slots__ = ("_first", "_source")

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        """Read nothing yet."""
        self._source = source
        self._first: asyncio.Future[bytes] | None = None

    async def begin(self) -> None:
        """Wait a moment for the first chunk; raises what the source raises."""
        self._first = asyncio.ensure_future(anext(self._source))
        done, _ = await asyncio.wait({self._first}, timeout=FIRST_CHUNK_S)
        if done and not isinstance(self._first.exception(), StopAsyncIteration | None):
            self._first.result()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield all chunks, including the first."""
        try:
            if self._first is not None:
                yield await self._first
            async for chunk in self._source:
                yield chunk
        except StopAsyncIteration:
            return
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading and close the source."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        close_source = getattr(self._source, "aclose", None)
        if close_source is not None:
            await close_source()


@dataclass(slots=True, eq=False)
class Response:
    """A status, a body and additional headers. With `stream`, the body is sent in chunks."""

    body: bytes = b""
    _: KW_ONLY
    status: int = 200
    media: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: Stream | None = None


def json_response(form: Any, *, status: int = 200) -> Response:
    """Return a response with `form` as JSON."""
    return Response(encode(form), status=status)


def form_of(form: type[Form], source: object, **given: Any) -> Form:
    """Return a form whose fields are `given`, or else the attributes of `source` of the same name.

    Enums become their values and tuples lists. A field with a default may be missing in both.
    """
    for name in form.__struct_fields__:
        if name not in given and hasattr(source, name):
            value = getattr(source, name)
            if isinstance(value, Enum):
                value = value.value
            given[name] = list(value) if isinstance(value, tuple) else value
    return form(**given)


def in_units(amount: int | None, unit: int) -> float | None:
    """Return an amount in larger units; whole numbers stay integers."""
    if amount is None:
        return None
    return amount // unit if amount % unit == 0 else amount / unit


@dataclass(slots=True, eq=False)
class Request:
    """A request that was routed and authenticated.

    `headers` has the last value of each name, `params` the parameters in the path. The body must
    arrive within `body_timeout_s`, and a little longer if it is large. `count_body` is called with
    its size.
    """

    scope: Scope
    _receive: Receive
    _: KW_ONLY
    caller: Caller
    headers: dict[bytes, bytes]
    params: dict[str, str]
    request_id: str
    body_timeout_s: float = 30.0
    count_body: Callable[[int], None] | None = None
    _body: bytes | None = field(default=None, init=False)

    @property
    def media(self) -> bytes:
        """The Content-Type without its parameters."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    async def body(self, most: int) -> bytes:
        """Read the whole body, at most `most` bytes. Can be called again."""
        if self._body is not None:
            if len(self._body) > most:
                raise _too_large(most)
            return self._body
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.body_timeout_s) as limit:
                self._body = await self._receive_body(most, limit)
        except TimeoutError:
            raise TooSlow(
                "the body did not arrive in time; send it at once, or in smaller parts"
            ) from None
        if self.count_body is not None:
            self.count_body(len(self._body))
        return self._body

    async def _receive_body(self, most: int, limit: asyncio.Timeout) -> bytes:
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
            deadline = limit.when()
            if deadline is not None:
                limit.reschedule(deadline + len(data) / LEAST_BYTES_PER_S)

    async def read_json(self, kind: type[Body], most: int) -> Body:
        """Read the body as JSON of this type."""
        self.expect_media(JSON)
        data = await self.body(most)
        return decode(kind, data)

    def expect_media(self, *known: bytes) -> None:
        """Reject other content types, among them those that a foreign web page can send."""
        if self.media not in known:
            names = " or ".join(name.decode() for name in known)
            given = self.media.decode("latin-1") or "missing"
            raise UnsupportedMedia(f"the Content-Type is {given}; send {names}")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(kind: type[Body], data: bytes, *, checks_keys: bool = True) -> Body:
    """Decode JSON of this type, or raise an error that tells the caller what to fix."""
    try:
        decoded: Body = _decoder(cast("Any", kind)).decode(data)
        if checks_keys:
            check_keys(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise bad_body(problem, kind, data) from None
    except RecursionError:
        raise InvalidRequest("Invalid request body: it is nested too deeply") from None
    return decoded


class Query:
    """The query parameters. Unknown and repeated ones are rejected."""

    def __init__(self, query: bytes, known: Iterable[str], most_bytes: int) -> None:
        """Parse the query string, in which only the `known` names may occur."""
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
            repeated = next(name for name in names if names.count(name) > 1)
            raise InvalidRequest(f"parameter '{repeated[:80]}' is given twice; give it once")
        for name in self._values:
            if name not in known:
                allowed = ", ".join(sorted(known)) or "none"
                raise InvalidRequest(f"parameter '{name[:80]}' is not known; known: {allowed}")

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a parameter."""
        value = self._values.get(name, default)
        if len(value) > MOST_TEXT:
            raise InvalidRequest(f"{name} is longer than {MOST_TEXT} characters")
        if "\0" in value:
            raise InvalidRequest(f"{name} holds a NUL character; remove it")
        return value

    def number(self, name: str, default: int, *, least: int = 0, most: int = MAX_NUMBER) -> int:
        """Return a whole number within bounds."""
        text = self._values.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise InvalidRequest(f"{name} is '{text[:80]}'; write a whole number")
        number = int(text)
        if not least <= number <= most:
            raise InvalidRequest(f"{name} is {number}; allowed is {least} to {most}")
        return number

    def optional(self, name: str, *, most: int = MAX_NUMBER) -> int | None:
        """Return a whole number, or None if it is not given."""
        return self.number(name, 0, most=most) if name in self._values else None

    def flag(self, name: str) -> bool:
        """Return a boolean; False if it is not given."""
        if name not in self._values:
            return False
        text = self._values[name].lower()
        if text not in TRUE_WORDS | FALSE_WORDS:
            raise InvalidRequest(f"{name} is '{text[:80]}'; write true or false")
        return text in TRUE_WORDS


def request_target(scope: Scope) -> bytes:
    """Return the path and query as they were sent."""
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    return target + b"?" + scope["query_string"] if scope["query_string"] else target


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes; send less at once")


# Sending responses

WEBSOCKET_RESPONSE = "websocket.http.response"
"""The ASGI message type for the HTTP response to a rejected WebSocket."""
ABORT_S = 1.0
"""How long to wait until an aborted connection is closed."""
log = structlog.get_logger("api")


async def send_response(
    response: Response,
    receive: Receive,
    send: Send,
    request_id: str,
    *,
    kind: str = "http.response",
    abort: Callable[[], None] | None = None,
) -> None:
    """Send the status, the headers and the body. `abort` closes the connection half-way."""
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
    chunks = _send_chunks(response.stream, send, request_id)
    try:
        async with until_first_ends(chunks, _wait_for_disconnect(receive)) as (sending, gone):
            has_failed = sending.done() and (
                sending.exception() is not None or not sending.result()
            )
            if has_failed and abort is not None:
                abort()
                await asyncio.wait({gone}, timeout=ABORT_S)
    finally:
        await response.stream.close()


@asynccontextmanager
async def until_first_ends(
    first: Coroutine[Any, Any, First], second: Coroutine[Any, Any, Second]
) -> AsyncIterator[tuple[asyncio.Task[First], asyncio.Task[Second]]]:
    """Run both until one of them has ended; cancel the other after the block."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send_chunks(stream: Stream, send: Send, request_id: str) -> bool:
    """Return whether the response is complete; the client sees that a failed one is not."""
    try:
        async with aclosing(stream.chunks()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except SchedulerError as error:
        log.warning("response stream failed", request_id=request_id, error=str(error))
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
