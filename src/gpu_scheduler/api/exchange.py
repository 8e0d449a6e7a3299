"""One request and its answer, with as little in between as the hot path can bear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from gpu_scheduler.api.doubles import check_keys
from gpu_scheduler.api.failures import TooLarge, TooSlow, UnsupportedMedia, bad_body
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import InvalidRequest

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


class Answer:
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


def answer(form: Any, *, status: int = 200) -> Answer:
    """A form as JSON."""
    return Answer(encode(form), status=status)


class Call:
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
