"""Answers go out: whole, or in pieces until the source ends or the caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import structlog

from gpu_scheduler.api.exchange import JSON, Answer, Stream
from gpu_scheduler.model.errors import SchedulerError

SOCKET_REFUSED = "websocket.http.response"
BREAK_OFF_S = 1.0
"""So long it is waited until a connection that was broken off is closed."""
log = structlog.get_logger("api")

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def send_answer(
    answer: Answer,
    receive: Receive,
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
        (b"content-type", answer.media),
        (b"x-request-id", request_id.encode()),
        (b"x-content-type-options", b"nosniff"),
        *answer.headers,
    ]
    if answer.media is JSON or answer.stream is not None:
        headers.append((b"cache-control", b"no-store"))
    if answer.stream is None:
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": answer.body})
        return
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    sending = asyncio.ensure_future(_send_pieces(answer.stream, send, request_id))
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
        await answer.stream.close()


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


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
