"""The logs of all members of a gang as one: whole lines, each with the rank of who wrote it.

What is there already comes member by member; with `follow`, lines come as they are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from gpu_scheduler.model.errors import ClusterError, StoreError, UnknownThing

MOST_LINE_BYTES = 1 << 16
MOST_WAITING = 64
"""So many pieces may wait for a slow reader before members are read no further."""
Pieces = asyncio.Queue[bytes | Exception | None]


async def merged(
    logs: Sequence[AsyncIterator[bytes]], *, follow: bool = False
) -> AsyncIterator[bytes]:
    """Logs by rank become one, with `[rank] ` before each line."""
    if not follow:
        for rank, log in enumerate(logs):
            async for lines in _marked(rank, log):
                yield lines
        return
    pieces: Pieces = asyncio.Queue(MOST_WAITING)
    readers = [
        asyncio.create_task(_copy(_marked(rank, log), pieces)) for rank, log in enumerate(logs)
    ]
    try:
        left = len(readers)
        while left:
            piece = await pieces.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                left -= 1
            else:
                yield piece
    finally:
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader


async def _copy(lines: AsyncIterator[bytes], pieces: Pieces) -> None:
    """All lines of one member, then its end; what goes wrong is for the one who reads."""
    try:
        async for piece in lines:
            await pieces.put(piece)
    except Exception as error:  # noqa: BLE001 - else nobody would hear that no more comes
        await pieces.put(error)
    else:
        await pieces.put(None)


async def _marked(rank: int, log: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of one member; a last one without an end gets one. One out of reach says so."""
    mark = b"[%d] " % rank
    rest = b""
    try:
        async for data in log:
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MOST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            if lines:
                yield b"".join(mark + line + b"\n" for line in lines)
        if rest:
            yield mark + rest + b"\n"
    except UnknownThing:
        return  # an elastic gang that started with fewer members
    except (ClusterError, StoreError) as error:
        yield mark + f"({error})\n".encode()
