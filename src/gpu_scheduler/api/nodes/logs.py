"""Logs are kept on the nodes; this asks their agents for them.

An agent sends so many chunks ahead and waits until they have been read: a reader that is slow, or
does not read at all, costs a little memory and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire import agent_pb2 as pb

CHUNKS_AHEAD = 16


@dataclass(slots=True)
class _Reader:
    """Who waits for chunks of a node. None is the end, before its time; `problem` says why."""

    node: str
    problem: str = ""
    chunks: asyncio.Queue[pb.LogChunk | None] = field(default_factory=asyncio.Queue)

    def end(self, problem: str) -> None:
        """Nothing more is taken; what has come is still read."""
        self.problem = problem
        self.chunks.put_nowait(None)


class LogStreams:
    """Requests under way, by number."""

    def __init__(self, send: Callable[[str, pb.ServerMessage], bool]) -> None:
        """`send` brings a message to a node, and says whether its agent is connected."""
        self._send = send
        self._numbers = count(1)
        self._waiting: dict[int, _Reader] = {}

    async def read(self, node_id: str, request: pb.LogRequest) -> AsyncIterator[bytes]:
        """The bytes that were asked for, as they come."""
        request.request_id = number = next(self._numbers)
        request.chunks = CHUNKS_AHEAD
        reader = self._waiting[number] = _Reader(node_id)
        try:
            if not self._send(node_id, pb.ServerMessage(log_request=request)):
                raise ClusterError(
                    f"node '{node_id}' is not connected, so its logs are out of reach"
                )
            while (chunk := await reader.chunks.get()) is not None:
                if chunk.data:
                    yield chunk.data
                    credit = pb.LogCredit(request_id=number, chunks=1)
                    self._send(node_id, pb.ServerMessage(log_credit=credit))
                if chunk.problem:
                    raise ClusterError(chunk.problem)
                if chunk.end:
                    return
            raise ClusterError(reader.problem)
        finally:
            del self._waiting[number]
            cancel = pb.LogCancel(request_id=number)
            self._send(node_id, pb.ServerMessage(log_cancel=cancel))

    def hear(self, node_id: str, chunk: pb.LogChunk) -> None:
        """A node has sent a piece. It is dropped if nobody waits for one of this node now."""
        reader = self._waiting.get(chunk.request_id)
        if reader is None or reader.node != node_id or reader.problem:
            return
        if chunk.data and reader.chunks.qsize() >= CHUNKS_AHEAD:
            reader.end(f"node '{reader.node}' sent more of its log than was asked for")
        else:
            reader.chunks.put_nowait(chunk)

    def node_gone(self, node_id: str) -> None:
        """Nothing more comes from this node."""
        for reader in self._waiting.values():
            if reader.node == node_id:
                reader.end(f"node '{node_id}' was disconnected while its log was read")
