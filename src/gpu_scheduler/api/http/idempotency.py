"""Idempotency keys: a repeated request with the same key gets the first response, changes nothing.

The stored response is a row in the same commit as the change, so it exists if and only if the
change does. A request that arrives while the first one is still running waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gpu_scheduler.api.http.errors import KeyReused
from gpu_scheduler.api.http.request import Request, Response
from gpu_scheduler.api.interfaces import ExtraWrites, Service
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Command
from gpu_scheduler.model.errors import CallerError, InvalidRequest
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.rows import ResponseRow, Write

if TYPE_CHECKING:
    from gpu_scheduler.api.context import Context
    from gpu_scheduler.api.http.openapi import Handler

HEADER = b"idempotency-key"
MOST_KEY = 255
_KEY = re.compile(rb"[!-~]{1,%d}" % MOST_KEY)
DONE = 204
"""The status that is stored for a change whose response is computed again."""
REPLAYED = ((b"idempotency-replayed", b"true"),)

Work = Callable[["_KeyedRequest"], Awaitable[Response]]


class IdempotencyStore:
    """The stored responses, and the keyed requests that are running."""

    def __init__(self, service: Service) -> None:
        """Responses are kept in the service's store."""
        self._service = service
        self._running: dict[tuple[str, str], asyncio.Task[Response]] = {}

    async def run_once(
        self,
        request: Request,
        body: bytes,
        command: Command,
        render: Callable[[Outcome], Response],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """Apply a command and render its outcome, or return the response stored for this key.

        `check` runs before the command is applied, and may raise.
        """
        key = request.headers.get(HEADER)
        if key is None:
            if check is not None:
                await check()
            return render(await self._service.apply(command, request.caller))

        async def work(keyed: _KeyedRequest) -> Response:
            stored = keyed.stored
            if stored is not None:
                return Response(stored.body.encode(), status=stored.status, headers=REPLAYED)

            def response_row(outcomes: Sequence[Outcome]) -> list[Write]:
                response = render(outcomes[0])
                body = response.body.decode()
                return [keyed.row(response.status, body, self._service.now_ms())]

            if check is not None:
                await check()
            outcome = await self._service.apply(command, request.caller, extra_writes=response_row)
            return render(outcome)

        return await self._run_alone(request, key, body, work)

    async def apply_once(
        self, context: Context, request: Request, handler: Handler, most: int
    ) -> Response:
        """Let a handler apply its change once per key.

        Only the fact that it was applied is stored. A repetition calls the same handler with a
        service that changes nothing, so that the response shows the current state.
        """
        body = await request.body(most)

        async def work(keyed: _KeyedRequest) -> Response:
            with_key = copy(context)
            if keyed.stored is None:
                with_key.service = cast(Service, _RecordingService(context.service, keyed))
                return await handler(with_key, request)
            with_key.service = cast(Service, _ReadOnlyService(context.service))
            try:
                response = await handler(with_key, request)
            except CallerError:
                response = Response(b"{}")  # the changed object does not exist any more
            response.headers += REPLAYED
            return response

        return await self._run_alone(request, request.headers[HEADER], body, work)

    async def _run_alone(self, request: Request, key: bytes, body: bytes, work: Work) -> Response:
        """Run as the only request with this key.

        The work continues although its client disconnects, and holds the key until it has finished:
        a command that was posted cannot be withdrawn, and its commit may still be to come.
        """
        slot = (_owner(request.caller), _read_key(key))
        while slot in self._running:
            await asyncio.wait((self._running[slot],))
        task = asyncio.create_task(self._run(slot, _digest(request, body), work))
        self._running[slot] = task
        task.add_done_callback(lambda _: self._running.pop(slot))
        return await asyncio.shield(task)

    async def _run(self, slot: tuple[str, str], digest: str, work: Work) -> Response:
        stored = await asyncio.to_thread(self._service.store.response, *slot)
        if stored is not None and stored.request_hash != digest:
            raise KeyReused(
                "this Idempotency-Key was used for another request; take a new key for each new "
                "request"
            )
        return await work(_KeyedRequest(slot=slot, digest=digest, stored=stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyedRequest:
    """A request with a key, and what is stored for that key."""

    slot: tuple[str, str]
    digest: str
    stored: ResponseRow | None

    def row(self, status: int, body: str, at_ms: int) -> ResponseRow:
        """Return the row to store for this request."""
        return ResponseRow(
            user=self.slot[0],
            key=self.slot[1],
            request_hash=self.digest,
            status=status,
            body=body,
            at_ms=at_ms,
        )


class _WrappedService:
    """The service, with another `apply`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


class _RecordingService(_WrappedService):
    """Stores the key in the commit of the first change."""

    def __init__(self, service: Service, keyed: _KeyedRequest) -> None:
        super().__init__(service)
        self._keyed: _KeyedRequest | None = keyed

    async def apply(
        self, message: Command, caller: Caller, *, extra_writes: ExtraWrites | None = None
    ) -> Outcome:
        """Apply the command and store the key with it."""
        keyed, self._keyed = self._keyed, None

        def with_key(outcomes: Sequence[Outcome]) -> Sequence[Write]:
            rows = [] if keyed is None else [keyed.row(DONE, "", self._service.now_ms())]
            return [*(() if extra_writes is None else extra_writes(outcomes)), *rows]

        return await self._service.apply(message, caller, extra_writes=with_key)


class _ReadOnlyService(_WrappedService):
    """Changes nothing, for a repeated request."""

    async def apply(self, message: Command, caller: Caller, **_: object) -> Outcome:  # noqa: ARG002
        """Ignore the command."""
        return Outcome()


def _owner(caller: Caller) -> str:
    """Return whose key it is: a token is limited to its tenant, and so is its key."""
    return f"{caller.user} in {caller.tenant}" if caller.confined else caller.user


def _read_key(key: bytes) -> str:
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"the Idempotency-Key must have 1 to {MOST_KEY} printable ASCII characters, no spaces"
        )
    return key.decode("ascii")


def _digest(request: Request, body: bytes) -> str:
    query = request.scope["query_string"].decode("latin-1")
    target = request.scope["path"] + (f"?{query}" if query else "")
    hashed = hashlib.sha256(f"{request.scope['method']} {target}\n".encode())
    hashed.update(body)
    return hashed.hexdigest()
