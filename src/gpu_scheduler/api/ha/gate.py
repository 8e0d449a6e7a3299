"""What the API must know of who leads, and the gate that a leader answers through.

A server that has lost the lead, or cannot be sure of it, must not answer as if it had it: the gate
looks at the moment when an answer begins, not when the request came, as the process may have been
frozen in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

from gpu_scheduler.api.http.request import JSON, encode
from gpu_scheduler.model.identity import LeaderLease, ServerMember
from gpu_scheduler.wire.answers import ErrorForm

HEALTH = frozenset({"/health", "/api/v1/health"})
"""Answered whatever the server is, as they say what it is."""
ROLE, TERM, AGE = b"x-tgpu-role", b"x-tgpu-term", b"x-tgpu-age-ms"
FORWARDED_HEADER = b"x-tgpu-passed-on"
"""The name of a header that a standby adds."""
READING = frozenset({"GET", "HEAD"})

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class LeadershipStatus(Protocol):
    """Whether this server leads, and who does."""

    @property
    def me(self) -> ServerMember:
        """This server."""
        ...

    @property
    def term(self) -> int:
        """The term in which this server leads; 0 if it does not."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether it may answer as the leader at this very moment."""
        ...

    @property
    def lead(self) -> LeaderLease:
        """Who leads, as far as is known here."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether the leader should have renewed its lease by now."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether this server stops, so that nobody should wait here for a leader."""
        ...

    @property
    def trouble(self) -> str:
        """Why that is not known for certain; empty if it is."""
        ...

    def database_ms(self) -> int:
        """The database's time, by which all servers can go."""
        ...

    async def changed(self) -> None:
        """Return when that is another one than before."""
        ...


class SwitchableApp:
    """One listener, several applications in turn: whoever serves now answers.

    The sockets of a server stay open when it takes the lead or loses it; what stands behind them
    changes. Requests that have begun go on with the application that they began with.
    """

    def __init__(self) -> None:
        """Nobody serves yet."""
        self.application: AsgiApp = _starting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        await self.application(scope, receive, send)


class LeadershipLost(OSError):
    """The lead ended before the answer did. An OSError, as if the connection had broken."""


class LeaderGate:
    """Lets answers of a leader out for as long as its term lasts, and says which term it was."""

    def __init__(self, application: AsgiApp, standing: LeadershipStatus, term: int) -> None:
        """`application` answers for this term alone."""
        self._application = application
        self._standing = standing
        self._term = term
        self._changes = 0
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket, unless the lead is lost before or in it."""
        is_free = scope["path"] in HEALTH
        started = False

        async def guarded(message: Any) -> None:
            nonlocal started
            if not is_free and not self._holds():
                raise LeadershipLost
            started = True
            await send(with_headers(message, self._headers()))

        if not is_free and not self._holds():
            await refuse(scope, send, self._not_now(scope))
            return
        try:
            with self._counted(scope):
                await self._application(scope, receive, guarded)
        except LeadershipLost:
            if not started:
                await refuse(scope, send, self._unknown(scope))

    async def finish_changes(self, longest_s: float) -> None:
        """Wait until all that was asked to change has been answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._none_left.wait()

    @contextmanager
    def _counted(self, scope: Scope) -> Iterator[None]:
        is_change = scope["type"] == "http" and scope["method"] not in READING
        self._changes += is_change
        if is_change:
            self._none_left.clear()
        try:
            yield
        finally:
            self._changes -= is_change
            if not self._changes:
                self._none_left.set()

    def _headers(self) -> Headers:
        """What this server is now: health is also told by one that is not sure any more."""
        role = b"leader" if self._holds() else b"unsure"
        return [(ROLE, role), (TERM, str(self._term).encode())]

    def _holds(self) -> bool:
        return self._standing.term == self._term and self._standing.is_held

    def _not_now(self, scope: Scope) -> ErrorForm:
        """Why nothing is said: another server may lead, or the database does not let anybody.

        A standby that passed the request on may reach the database, and waits for who leads next.
        """
        trouble = self._standing.trouble
        is_passed_on = any(name == FORWARDED_HEADER for name, _ in scope["headers"])
        if trouble and self._standing.term == self._term and not is_passed_on:
            return ErrorForm(
                error=f"{trouble}; so this server is not sure that it still leads, and does "
                "nothing. Running jobs go on; try again when the database is back",
                code="unavailable",
            )
        return ErrorForm(
            error="this server is not sure that it still leads, so it does nothing and says "
            "nothing; ask again in a moment, or ask another server",
            code="not_leader",
        )

    def _unknown(self, scope: Scope) -> ErrorForm:
        """The work may have been done before the lead was lost: the next leader can say it."""
        if scope["type"] != "http" or scope["method"] in READING:
            return self._not_now(scope)
        return ErrorForm(
            error="this server lost the lead while it worked on the request; whether it was done "
            "is not known here. Repeat it with the same Idempotency-Key, or look first",
            code="outcome_unknown",
        )


def with_headers(message: Any, headers: Headers) -> Any:
    """The message with these headers too, if it has any."""
    if not message["type"].endswith(".start") and message["type"] != "websocket.accept":
        return message
    return {**message, "headers": [*message.get("headers", ()), *headers]}


async def refuse(scope: Scope, send: Send, form: ErrorForm) -> None:
    """Answer with 503: somebody else can be asked, in a moment."""
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    headers = [(b"content-type", JSON), (b"retry-after", b"1"), (b"cache-control", b"no-store")]
    body = encode(form)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": 503, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await refuse(scope, send, ErrorForm(error="this server is starting", code="not_leader"))


# --- What an answer should tell and the cluster state does not know: noted by who makes the answer.
#
# Rows are read as they are now; places and reasons come from the cluster state, which is older on a
# server
# that stands by. There the leader is asked instead. Where nobody wants to know, noting does
# nothing.

_noted: ContextVar[list[str] | None] = ContextVar("gaps", default=None)


def note_stale(name: str) -> None:
    """The cluster state does not know this job or attempt, and by its row it should."""
    gaps = _noted.get()
    if gaps is not None:
        gaps.append(name)


@contextmanager
def collect_stale() -> Iterator[list[str]]:
    """Collect what is noted in the block."""
    gaps: list[str] = []
    before = _noted.set(gaps)
    try:
        yield gaps
    finally:
        _noted.reset(before)
