"""The GPUs as a WebSocket: all of them first, then once a second the fields that have changed.

One task compares the GPUs for all clients, and every client gets the same bytes, so that many
clients cost about as much as one. Processes are left out; `GET /gpus` has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from msgspec import to_builtins

from gpu_scheduler.api.auth.accounts import LookupPending
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import V1
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit
from gpu_scheduler.api.http.request import Receive, Request, Send, encode, until_first_ends
from gpu_scheduler.api.routes.cluster import gpu_forms
from gpu_scheduler.api.routes.events import NOT_UNDERSTOOD, TOO_SLOW, close_socket, until_gone
from gpu_scheduler.model.errors import CallerError
from gpu_scheduler.model.identity import Caller

PATH = f"{V1}/gpus/stream"
PERIOD_S = 1.0
RECHECK_S = 5.0
"""How often a client is authenticated again."""
NOT_ALLOWED = 1008
FAILED = "GPUs could not be compared"
Fields = dict[str, Any]


class GpuChanges:
    """The last state of every GPU and what changed in the last step."""

    def __init__(self, context: Context) -> None:
        """Nothing is computed without clients."""
        self._context = context
        self._gpus: dict[tuple[str, int], Fields] = {}
        self._step = 0
        self._change = ""
        self._clients = 0
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncGenerator[str]:
        """Yield all GPUs, then each change; all of them again after a missed change."""
        self._clients += 1
        seen = -2
        try:
            if self._task is None:
                self._compare()
                self._task = asyncio.create_task(self._run())
            while True:
                text = self._change if seen == self._step - 1 else self._whole()
                seen = self._step
                yield text
                while seen == self._step:
                    await self._until_next()
        finally:
            self._clients -= 1
            if not self._clients and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _until_next(self) -> None:
        if self._task is None:
            raise ConnectionError(FAILED)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                self._compare()
        finally:
            # Without clients it was cancelled. After an error they connect again.
            if self._clients and self._task is asyncio.current_task():
                self._task = None
                if self._next is not None:
                    self._next.set_exception(ConnectionError(FAILED))
                    self._next = None

    def _compare(self) -> None:
        """Take the next step if a field of a GPU has changed."""
        found = {
            (fields["node"], fields["index"]): fields
            for form in gpu_forms(self._context, Caller(user=""))
            for fields in [_shown(to_builtins(form))]
        }
        changed = []
        for key, fields in found.items():
            old = self._gpus.get(key, {})
            news = {
                name: value
                for name, value in fields.items()
                if name not in old or old[name] != value
            }
            if news:
                changed.append({"node": key[0], "index": key[1], **news})
        gone = [list(key) for key in self._gpus if key not in found]
        self._gpus = found
        if not changed and not gone:
            return
        self._step += 1
        self._change = encode({"gpus": changed, "gone": gone}).decode()
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    def _whole(self) -> str:
        return encode({"whole": True, "gpus": list(self._gpus.values()), "gone": []}).decode()


def _shown(fields: Fields) -> Fields:
    """Without processes, and without digits that only add traffic."""
    del fields["processes"]
    for name in ("power_watts", "utilisation_mean_percent"):
        if fields[name] is not None:
            fields[name] = round(fields[name])
    return fields


class GpuSockets:
    """The open streams of GPUs, a limited number per user."""

    def __init__(self, context: Context) -> None:
        """Start without streams."""
        self._context = context
        self._changes = GpuChanges(context)
        self._limit = ConcurrencyLimit(context.settings.bounds.sockets_per_user, "GPU streams")

    async def serve(
        self, request: Request, authenticate: Callable[[], Caller], receive: Receive, send: Send
    ) -> None:
        """Accept a connection and send changes until one side ends it, or the token is revoked."""
        self._context.parse_query(request)
        with self._limit.hold(request.caller.user):
            await receive()
            await send({"type": "websocket.accept"})
            feeding = self._send_all(authenticate, send)
            async with until_first_ends(until_gone(receive), feeding) as (gone, sending):
                if sending.done():
                    await close_socket(send, *sending.result())
                elif gone.result():
                    await close_socket(send, NOT_UNDERSTOOD, "this stream takes no messages")

    async def _send_all(self, authenticate: Callable[[], Caller], send: Send) -> tuple[int, str]:
        """Send until the client is too slow or no longer known; return the close code and why."""
        clock = asyncio.get_running_loop().time
        checked_s = clock()
        async with aclosing(self._changes.messages()) as messages:
            async for text in messages:
                try:
                    if clock() - checked_s >= RECHECK_S:
                        checked_s = clock()
                        with suppress(LookupPending):
                            authenticate()
                    async with asyncio.timeout(self._context.settings.bounds.send_seconds):
                        await send({"type": "websocket.send", "text": text})
                except TimeoutError:
                    return TOO_SLOW, "connect again"
                except CallerError as error:
                    return NOT_ALLOWED, error.code
        return TOO_SLOW, "connect again"
