"""A repeated request with the same idempotency key gets the first answer and does nothing more.

The answer is kept in the commit of what it answers, so it exists if and only if that does. Requests
that come while the first is under way wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence

from gpu_scheduler.api.exchange import Answer, Call
from gpu_scheduler.api.failures import KeyReused
from gpu_scheduler.api.service import Also, Service
from gpu_scheduler.control.messages import Outcome
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.store.rows import AnswerRow, Write

HEADER = b"idempotency-key"
MOST_KEY = 255
_KEY = re.compile(rb"[!-~]{1,%d}" % MOST_KEY)
REPLAYED = ((b"idempotency-replayed", b"true"),)

Act = Callable[[Also | None], Awaitable[Outcome]]
Tell = Callable[[Outcome], Answer]


class Repeats:
    """Which keyed requests are under way, and what was answered before."""

    def __init__(self, service: Service) -> None:
        """Answers are kept in the store."""
        self._service = service
        self._under_way: dict[tuple[str, str], asyncio.Event] = {}

    async def once(self, call: Call, body: bytes, act: Act, tell: Tell) -> Answer:
        """Act and tell, or repeat what was told to the same request before."""
        given = call.headers.get(HEADER)
        if given is None:
            return tell(await act(None))
        key = _read_key(given)
        slot = (_owner(call.caller), key)
        while slot in self._under_way:
            await self._under_way[slot].wait()
        digest = _digest(call, body)
        before = self._service.store.answer(*slot)
        if before is not None:
            return _replayed(before, digest)
        done = self._under_way[slot] = asyncio.Event()

        def remember(outcomes: Sequence[Outcome]) -> list[Write]:
            told = tell(outcomes[0])
            return [
                AnswerRow(
                    user=slot[0],
                    key=key,
                    request_hash=digest,
                    status=told.status,
                    body=told.body.decode(),
                    at_ms=self._service.now_ms(),
                )
            ]

        try:
            return tell(await act(remember))
        finally:
            del self._under_way[slot]
            done.set()


def _owner(caller: Caller) -> str:
    """Whose key it is: what is asked with a token is asked for its tenant alone."""
    return f"{caller.user} in {caller.tenant}" if caller.confined else caller.user


def _read_key(given: bytes) -> str:
    if not _KEY.fullmatch(given):
        raise InvalidRequest(
            f"the Idempotency-Key must have 1 to {MOST_KEY} printable ASCII characters, no spaces"
        )
    return given.decode("ascii")


def _digest(call: Call, body: bytes) -> str:
    hashed = hashlib.sha256(f"{call.scope['method']} {call.scope['path']}\n".encode())
    hashed.update(body)
    return hashed.hexdigest()


def _replayed(before: AnswerRow, digest: str) -> Answer:
    if before.request_hash != digest:
        raise KeyReused(
            "this Idempotency-Key was used for another request; take a new key for each new request"
        )
    return Answer(before.body.encode(), status=before.status, headers=REPLAYED)
