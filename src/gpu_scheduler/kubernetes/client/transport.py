"""What the client needs of a connection to the API server: requests in, answers out.

`client.http` implements it by aiohttp; tests implement it without sockets, on virtual time.
A transport raises `Unreachable` if the request certainly was not sent, and `OutcomeUnknown` if it
may have been. It never repeats a request that may have been carried out.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; `timeout_seconds` limits the wait for the complete answer."""

    method: str
    path: str
    query: Query = ()
    body: bytes = b""
    content_type: str = "application/json"
    timeout_seconds: float = 30.0

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An answer that goes on; its chunks end, or raise, when the connection does."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """A connection to one API server, with the credentials of one identity."""

    async def send(self, request: Request) -> Answer:
        """Send a request and return the complete answer, whatever its status."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Send a request; `timeout_seconds` limits only the wait for the start of the answer."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
