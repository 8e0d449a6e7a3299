"""A repeated request with the same idempotency key gets the first answer and does nothing more.

The answer is kept in the commit of what it answers, so it exists if and only if that does. Requests
that come while the first is under way wait for it.
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
from gpu_scheduler.store.rows import AnswerRow, Write

if TYPE_CHECKING:
    from gpu_scheduler.api.context import Context
    from gpu_scheduler.api.http.operations import Handler

HEADER = b"idempotency-key"
MOST_KEY = 255
_KEY = re.compile(rb"[!-~]{1,%d}" % MOST_KEY)
DONE = 204
"""Kept of a change whose answer is worked out anew."""
REPLAYED = ((b"idempotency-replayed", b"true"),)

Act = Callable[[ExtraWrites | None], Awaitable[Outcome]]
Tell = Callable[[Outcome], Response]


class IdempotencyStore:
    """Which keyed requests are under way, and what was answered before."""

    def __init__(self, service: Service) -> None:
        """Answers are kept in the store."""
        self._service = service
        self._under_way: dict[tuple[str, str], asyncio.Task[Response]] = {}

    async def run_once(self, request: Request, body: bytes, act: Act, tell: Tell) -> Response:
        """Act and tell, or repeat what was told to the same request before."""
        given = request.headers.get(HEADER)
        if given is None:
            return tell(await act(None))

        async def work(turn: _Turn) -> Response:
            if turn.before is not None:
                return _replayed(turn.before)

            def remember(outcomes: Sequence[Outcome]) -> list[Write]:
                told = tell(outcomes[0])
                return [turn.row(told.status, told.body.decode(), self._service.now_ms())]

            return tell(await act(remember))

        return await self._in_turn(request, given, body, work)

    async def apply_once(
        self, context: Context, request: Request, handler: Handler, most: int
    ) -> Response:
        """Let a handler change something, once for each key.

        That it was done is kept in the commit of the change. What is answered to a repetition is
        worked out anew, by the same handler, which then changes nothing: how things are now.
        """
        body = await request.body(most)

        async def work(turn: _Turn) -> Response:
            again = copy(context)
            if turn.before is None:
                again.service = cast(Service, _Noting(context.service, turn))
                return await handler(again, request)
            again.service = cast(Service, _Done(context.service))
            try:
                told = await handler(again, request)
            except CallerError:
                told = Response(b"{}")  # what was changed is not there any more
            told.headers += REPLAYED
            return told

        return await self._in_turn(request, request.headers[HEADER], body, work)

    async def _in_turn(
        self,
        request: Request,
        given: bytes,
        body: bytes,
        work: Callable[[_Turn], Awaitable[Response]],
    ) -> Response:
        """Work as the only request with this key.

        What has begun goes on although its caller is gone, and the key is taken until it is over:
        a message that has been sent is not taken back, and its commit may still be to come.
        """
        slot = (_owner(request.caller), _read_key(given))
        while slot in self._under_way:
            await asyncio.wait((self._under_way[slot],))
        working = asyncio.create_task(self._work(slot, _digest(request, body), work))
        self._under_way[slot] = working
        working.add_done_callback(lambda _: self._under_way.pop(slot))
        return await asyncio.shield(working)

    async def _work(
        self, slot: tuple[str, str], digest: str, work: Callable[[_Turn], Awaitable[Response]]
    ) -> Response:
        before = self._service.store.answer(*slot)
        if before is not None and before.request_hash != digest:
            raise KeyReused(
                "this Idempotency-Key was used for another request; take a new key for each new "
                "request"
            )
        return await work(_Turn(slot=slot, digest=digest, before=before))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One request with a key."""

    slot: tuple[str, str]
    digest: str
    before: AnswerRow | None

    def row(self, status: int, body: str, at_ms: int) -> AnswerRow:
        """What is kept of it."""
        return AnswerRow(
            user=self.slot[0],
            key=self.slot[1],
            request_hash=self.digest,
            status=status,
            body=body,
            at_ms=at_ms,
        )


class _Noting:
    """The service, with the key noted in the commit of the first change."""

    def __init__(self, service: Service, turn: _Turn) -> None:
        self._service = service
        self._turn: _Turn | None = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def apply(
        self, message: Command, caller: Caller, *, extra_writes: ExtraWrites | None = None
    ) -> Outcome:
        """Do what the message says, and keep that it was done."""
        turn, self._turn = self._turn, None

        def both(outcomes: Sequence[Outcome]) -> Sequence[Write]:
            rows = [] if turn is None else [turn.row(DONE, "", self._service.now_ms())]
            return [*(() if extra_writes is None else extra_writes(outcomes)), *rows]

        return await self._service.apply(message, caller, extra_writes=both)


class _Done:
    """The service, for a change that was made before."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def apply(self, message: Command, caller: Caller, **_: object) -> Outcome:  # noqa: ARG002
        """Nothing is changed again."""
        return Outcome()


def _owner(caller: Caller) -> str:
    """Whose key it is: what is asked with a token is asked for its tenant alone."""
    return f"{caller.user} in {caller.tenant}" if caller.confined else caller.user


def _read_key(given: bytes) -> str:
    if not _KEY.fullmatch(given):
        raise InvalidRequest(
            f"the Idempotency-Key must have 1 to {MOST_KEY} printable ASCII characters, no spaces"
        )
    return given.decode("ascii")


def _digest(request: Request, body: bytes) -> str:
    query = request.scope["query_string"].decode("latin-1")
    target = request.scope["path"] + (f"?{query}" if query else "")
    hashed = hashlib.sha256(f"{request.scope['method']} {target}\n".encode())
    hashed.update(body)
    return hashed.hexdigest()


def _replayed(before: AnswerRow) -> Response:
    return Response(before.body.encode(), status=before.status, headers=REPLAYED)
