"""Logs are kept on the nodes; this asks their agents for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire import agent_pb2 as pb


class NodeLogs:
    """Requests under way, by number."""

    def __init__(self, send: Callable[[str, pb.ServerMessage], bool]) -> None:
        """`send` brings a message to a node, and says whether its agent is connected."""
        self._send = send
        self._numbers = count(1)
        self._waiting: dict[int, tuple[str, asyncio.Queue[pb.LogChunk | None]]] = {}

    async def read(self, node_id: str, request: pb.LogRequest) -> AsyncIterator[bytes]:
        """The bytes that were asked for, as they come."""
        request.request_id = number = next(self._numbers)
        chunks: asyncio.Queue[pb.LogChunk | None] = asyncio.Queue()
        self._waiting[number] = (node_id, chunks)
        try:
            if not self._send(node_id, pb.ServerMessage(log_request=request)):
                raise ClusterError(
                    f"node '{node_id}' is not connected, so its logs are out of reach"
                )
            while (chunk := await chunks.get()) is not None:
                if chunk.data:
                    yield chunk.data
                if chunk.problem:
                    raise ClusterError(chunk.problem)
                if chunk.end:
                    return
            raise ClusterError(f"node '{node_id}' was disconnected while its log was read")
        finally:
            del self._waiting[number]
            cancel = pb.LogCancel(request_id=number)
            self._send(node_id, pb.ServerMessage(log_cancel=cancel))

    def hear(self, chunk: pb.LogChunk) -> None:
        """A piece has come. One that nobody waits for any more is dropped."""
        found = self._waiting.get(chunk.request_id)
        if found is not None:
            found[1].put_nowait(chunk)

    def node_gone(self, node_id: str) -> None:
        """Nothing more comes from this node."""
        for waiting_node, chunks in self._waiting.values():
            if waiting_node == node_id:
                chunks.put_nowait(None)
