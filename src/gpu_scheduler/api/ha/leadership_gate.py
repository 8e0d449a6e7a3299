"""Leadership as the API sees it, and the gate through which a leader responds.

A server that has lost the leadership, or is not sure of it, must not respond as the leader. The
gate checks when a response begins, not when the request arrived: the process may have been frozen
in between. A standby answers reads from its own, older cluster state; `note_stale` marks what that
state lacks, so that the proxy asks the leader instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

from gpu_scheduler.api.http.errors import ErrorForm
from gpu_scheduler.api.http.request import (
    JSON,
    WEBSOCKET_RESPONSE,
    AsgiApp,
    Receive,
    Scope,
    Send,
    encode,
)
from gpu_scheduler.model.identity import LeaderLease, ServerMember

HEALTH = frozenset({"/health", "/api/v1/health"})
"""Answered in any role, because they report the role."""
ROLE, TERM, AGE = b"x-tgpu-role", b"x-tgpu-term", b"x-tgpu-age-ms"
FORWARDED_HEADER = b"x-tgpu-passed-on"
"""A standby adds this header to the requests that it forwards."""
READING = frozenset({"GET", "HEAD"})
Headers = list[tuple[bytes, bytes]]


class LeadershipStatus(Protocol):
    """Whether this server is the leader, and which server is."""

    @property
    def me(self) -> ServerMember:
        """This server."""
        ...

    @property
    def term(self) -> int:
        """The term in which this server is the leader; 0 if it is not."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether its lease is valid at this moment."""
        ...

    @property
    def lead(self) -> LeaderLease:
        """The leader, as far as this server knows."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether the leader should have renewed its lease by now."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether this server is shutting down; requests should not wait here for a leader."""
        ...

    @property
    def trouble(self) -> str:
        """Why the leadership is uncertain; empty if it is not."""
        ...

    def database_ms(self) -> int:
        """The database's time, which all servers share."""
        ...

    async def changed(self) -> None:
        """Return when the leadership changes."""
        ...


class SwitchableApp:
    """Passes requests to the app of the server's current role.

    The listeners stay open when a server becomes leader or standby; only the app changes. Requests
    that have begun finish with the app they began with.
    """

    def __init__(self) -> None:
        """Reject requests until the first app is set."""
        self.application: AsgiApp = _starting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        await self.application(scope, receive, send)


class LeadershipLost(OSError):
    """The term ended before the response did. An OSError, as if the connection had failed."""


class LeaderGate:
    """Passes on the responses of a leader's app while its term lasts, with the term in a header."""

    def __init__(self, application: AsgiApp, leadership: LeadershipStatus, term: int) -> None:
        """`application` serves this term only."""
        self._application = application
        self._leadership = leadership
        self._term = term
        self._changes = 0
        self._no_changes = asyncio.Event()
        self._no_changes.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket, unless the leadership is lost before it is answered."""
        is_health = scope["path"] in HEALTH
        started = False

        async def checked_send(message: Any) -> None:
            nonlocal started
            if not is_health and not self._is_leader():
                raise LeadershipLost
            started = True
            await send(with_headers(message, self._headers()))

        if not is_health and not self._is_leader():
            await reject(scope, send, self._not_leader(scope))
            return
        try:
            with self._count_change(scope):
                await self._application(scope, receive, checked_send)
        except LeadershipLost:
            if not started:
                await reject(scope, send, self._outcome_unknown(scope))

    async def finish_changes(self, longest_s: float) -> None:
        """Wait until all running changes have been answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._no_changes.wait()

    @contextmanager
    def _count_change(self, scope: Scope) -> Iterator[None]:
        is_change = scope["type"] == "http" and scope["method"] not in READING
        self._changes += is_change
        if is_change:
            self._no_changes.clear()
        try:
            yield
        finally:
            self._changes -= is_change
            if not self._changes:
                self._no_changes.set()

    def _headers(self) -> Headers:
        """Return the role and term; /health is also answered when the leadership is unsure."""
        role = b"leader" if self._is_leader() else b"unsure"
        return [(ROLE, role), (TERM, str(self._term).encode())]

    def _is_leader(self) -> bool:
        return self._leadership.term == self._term and self._leadership.is_held

    def _not_leader(self, scope: Scope) -> ErrorForm:
        """Return the error: another server may be the leader, or the database is unreachable.

        A standby that forwarded the request may reach the database, and waits for the next leader.
        """
        trouble = self._leadership.trouble
        is_forwarded = any(name == FORWARDED_HEADER for name, _ in scope["headers"])
        if trouble and self._leadership.term == self._term and not is_forwarded:
            return ErrorForm(
                error=f"{trouble}; so this server is not sure that it is still the leader, and "
                "rejects requests. Running jobs go on; try again when the database is back",
                code="unavailable",
            )
        return ErrorForm(
            error="this server is not sure that it is still the leader, so it rejects requests; "
            "try again in a moment, or ask another server",
            code="not_leader",
        )

    def _outcome_unknown(self, scope: Scope) -> ErrorForm:
        """Return the error for a change that may have been committed before the term ended."""
        if scope["type"] != "http" or scope["method"] in READING:
            return self._not_leader(scope)
        return ErrorForm(
            error="this server lost the leadership while it processed the request; it is unknown "
            "whether the change was made. Repeat it with the same Idempotency-Key, or check first",
            code="outcome_unknown",
        )


def with_headers(message: Any, headers: Headers) -> Any:
    """Add headers to an ASGI message that carries headers."""
    if not message["type"].endswith(".start") and message["type"] != "websocket.accept":
        return message
    return {**message, "headers": [*message.get("headers", ()), *headers]}


async def reject(scope: Scope, send: Send, form: ErrorForm) -> None:
    """Respond with 503 and Retry-After."""
    kind = "http.response" if scope["type"] == "http" else WEBSOCKET_RESPONSE
    headers = [(b"content-type", JSON), (b"retry-after", b"1"), (b"cache-control", b"no-store")]
    body = encode(form)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": 503, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await reject(scope, send, ErrorForm(error="this server is starting", code="not_leader"))


# What the cluster state of a standby lacks
#
# Rows are read from the database as they are now. Placements and reasons come from the cluster
# state, which is older on a standby.

_stale: ContextVar[list[str] | None] = ContextVar("stale", default=None)


def note_stale(name: str) -> None:
    """Note that the cluster state lacks a job or attempt that the database has.

    Does nothing outside of `collect_stale`.
    """
    stale = _stale.get()
    if stale is not None:
        stale.append(name)


@contextmanager
def collect_stale() -> Iterator[list[str]]:
    """Collect what `note_stale` notes inside the block."""
    stale: list[str] = []
    before = _stale.set(stale)
    try:
        yield stale
    finally:
        _stale.reset(before)
