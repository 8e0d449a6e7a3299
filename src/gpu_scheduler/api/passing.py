"""A WebSocket of the leader and one of a caller of a standby, joined: messages go both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.websocket import BINARY, CLOSE, TEXT, Frames, masked

PIECE = 1 << 16
BROKEN = 1011
CLOSE_S = 5.0

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


async def pass_on(
    already: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    receive: Receive,
    send: Send,
) -> None:
    """Until one of them is closed. `already` is what the leader said right after its yes."""
    await receive()
    await send({"type": "websocket.accept"})
    frames = Frames(already)
    down = asyncio.ensure_future(_down(frames, reader, writer, send))
    up = asyncio.ensure_future(_up(writer, receive))
    try:
        await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            return
        code, reason = BROKEN, "the leader broke off"
        if down.exception() is None and frames.closed:
            code, reason = frames.close_code or BROKEN, frames.close_reason
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})
    finally:
        for task in (down, up):
            task.cancel()
        await asyncio.gather(down, up, return_exceptions=True)


async def _down(
    frames: Frames, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Send
) -> None:
    """What the leader says."""
    data = b""
    while True:
        for message in frames.feed(data):
            if frames.kind == TEXT:
                await send({"type": "websocket.send", "text": message.decode()})
            else:
                await send({"type": "websocket.send", "bytes": message})
        if frames.reply:
            writer.write(bytes(frames.reply))
            frames.reply.clear()
        if frames.closed:
            return
        data = await reader.read(PIECE)
        if not data:
            raise Unreadable("the leader broke off")


async def _up(writer: asyncio.StreamWriter, receive: Receive) -> None:
    """What the caller says; its end is the end."""
    while (message := await receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        if data is None:
            writer.write(masked(TEXT, message["text"].encode()))
        else:
            writer.write(masked(BINARY, data))
        await writer.drain()
    writer.write(masked(CLOSE, b""))
    await writer.drain()
