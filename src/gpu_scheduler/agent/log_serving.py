"""Logs that a server reads from this node, several at once and each at its reader's pace.

Requests come in, pieces go out. A reader with credit gets no more than it has asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpu_scheduler.agent.logs import read_log
from gpu_scheduler.wire import agent_pb2 as pb

ON_ITS_WAY_S = 5.0
"""So long a log is waited for whose order has not come yet: a reader can overtake it."""
Key = tuple[str, int]


class LogServing:
    """The readers of one stream."""

    def __init__(
        self,
        path_of: Callable[[str, str, int], str],
        is_over: Callable[[Key], bool | None],
        send: Callable[[pb.AgentMessage], None],
    ) -> None:
        """`path_of` names the log of a member; `is_over` is None for one nobody has heard of."""
        self._path_of = path_of
        self._is_over = is_over
        self._send = send
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}

    def begin(self, request: pb.LogRequest) -> None:
        """Somebody wants to read."""
        number = request.request_id
        if request.chunks:
            self._credits[number] = asyncio.Semaphore(request.chunks)
        self._readers[number] = task = asyncio.create_task(self._read(request))
        task.add_done_callback(lambda _: self._end(number))

    def more(self, more: pb.LogCredit) -> None:
        """So many pieces more may be sent."""
        credit = self._credits.get(more.request_id)
        if credit is not None:
            for _ in range(more.chunks):
                credit.release()

    def cancel(self, number: int) -> None:
        """Nobody reads any more."""
        reader = self._readers.pop(number, None)
        if reader is not None:
            reader.cancel()

    def close(self) -> None:
        """The stream is gone, and with it all readers."""
        for reader in list(self._readers.values()):
            reader.cancel()
        self._readers.clear()

    def _end(self, number: int) -> None:
        self._readers.pop(number, None)
        self._credits.pop(number, None)

    async def _read(self, request: pb.LogRequest) -> None:
        key = (request.allocation_id, request.member)
        path = Path(self._path_of(request.job_id, *key))
        give_up = asyncio.get_running_loop().time() + ON_ITS_WAY_S

        def is_over() -> bool:
            known = self._is_over(key)
            if known is None:
                return path.exists() or asyncio.get_running_loop().time() > give_up
            return known

        def chunk(data: bytes = b"", *, end: bool = False) -> pb.AgentMessage:
            piece = pb.LogChunk(request_id=request.request_id, data=data, end=end)
            return pb.AgentMessage(log_chunk=piece)

        pieces = read_log(
            path,
            offset=request.offset,
            limit=request.limit,
            follow=request.follow,
            is_over=is_over,
        )
        credit = self._credits.get(request.request_id)
        async for data in pieces:
            if credit is not None:
                await credit.acquire()
            self._send(chunk(data))
        self._send(chunk(end=True))
