"""Logs are kept on the nodes; this asks their agents for them.

An agent sends so many chunks ahead and waits until they have been read: a reader that is slow, or
does not read at all, costs a little memory and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import TERMINALS

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


# ==== Terminals of jobs are on the nodes; this joins people to them through the agents' streams.

CHUNKS_AHEAD = 8
OPENS_S = 15.0
"""A little longer than an agent waits for the socket of a job that has just begun."""

Item = bytes | int | None


class TerminalSession:
    """One person at one terminal: pieces of output and credits for input come out, in order."""

    def __init__(self, node: str, number: int, send: Callable[[pb.ServerMessage], object]) -> None:
        """`send` brings a message to the node."""
        self.node = node
        self.problem = ""
        self._number = number
        self._send = send
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._pieces = 0
        self._may_put = 0

    async def begun(self) -> None:
        """Return when the terminal is joined; raises why it is not."""
        try:
            async with asyncio.timeout(OPENS_S):
                first = await self._items.get()
        except TimeoutError:
            raise ClusterError(
                f"node '{self.node}' does not answer, so the terminal is out of reach; try again"
            ) from None
        if first is None:
            raise ClusterError(self.problem or "its terminal was closed at once; has it ended?")
        self._items.put_nowait(first)

    async def items(self) -> AsyncIterator[bytes | int]:
        """Output, and how many pieces more the program takes; ends with the terminal.

        A piece makes room for another when the next item is asked for. `problem` says why it ended,
        if it is not simply over.
        """
        while (item := await self._items.get()) is not None:
            yield item
            if isinstance(item, bytes):
                self._pieces -= 1
                credit = pb.TerminalCredit(terminal_id=self._number, chunks=1)
                self._send(pb.ServerMessage(terminal_credit=credit))

    def put(self, data: bytes) -> None:
        """Pass on what the person says; only for a credit."""
        if not self._may_put:
            raise InvalidRequest("more was sent to the terminal than it takes; wait for credit")
        self._may_put -= 1
        piece = pb.TerminalData(terminal_id=self._number, data=data)
        self._send(pb.ServerMessage(terminal_data=piece))

    def hear(self, message: pb.AgentMessage) -> None:
        """The node says something about this terminal."""
        match message.WhichOneof("message"):
            case "terminal_data" if self._pieces < CHUNKS_AHEAD:
                self._pieces += 1
                self._items.put_nowait(message.terminal_data.data)
            case "terminal_data":
                self.end(f"node '{self.node}' sent more than was asked for")
            case "terminal_credit":
                self._may_put += message.terminal_credit.chunks
                self._items.put_nowait(message.terminal_credit.chunks)
            case "terminal_close":
                self.end(message.terminal_close.problem)

    def end(self, problem: str) -> None:
        """Nothing more comes; what has come is still handed out."""
        self.problem = self.problem or problem
        self._items.put_nowait(None)


class TerminalStreams:
    """All that are open, by number."""

    def __init__(
        self,
        send: Callable[[str, pb.ServerMessage], bool],
        introduced: Callable[[str], pb.Hello | None],
    ) -> None:
        """`introduced` is how the agent of a node has introduced itself, None if it is away."""
        self._send = send
        self._introduced = introduced
        self._numbers = count(1)
        self._visits: dict[int, TerminalSession] = {}

    @asynccontextmanager
    async def open(self, node_id: str, asked: pb.TerminalOpen) -> AsyncIterator[TerminalSession]:
        """Join the terminal that is asked for, until the end of the block."""
        self._check(node_id)
        asked.terminal_id = number = next(self._numbers)
        asked.chunks = CHUNKS_AHEAD
        visit = self._visits[number] = TerminalSession(
            node_id, number, lambda message: self._send(node_id, message)
        )
        try:
            self._send(node_id, pb.ServerMessage(terminal_open=asked))
            await visit.begun()
            yield visit
        finally:
            del self._visits[number]
            close = pb.TerminalClose(terminal_id=number)
            self._send(node_id, pb.ServerMessage(terminal_close=close))

    def _check(self, node_id: str) -> None:
        hello = self._introduced(node_id)
        if hello is None:
            raise ClusterError(
                f"node '{node_id}' is not connected, so its terminals are out of reach; what runs "
                "there goes on"
            )
        if TERMINALS not in hello.abilities:
            raise WrongState(
                f"the agent of node '{node_id}' (version {hello.version}) is too old to bring "
                "terminals here; log in to that machine, or update gpu-scheduler there"
            )

    def hear(self, node_id: str, message: pb.AgentMessage) -> None:
        """A node says something; dropped if it is not about a terminal that is open there."""
        kind = str(message.WhichOneof("message"))
        visit = self._visits.get(getattr(message, kind).terminal_id)
        if visit is not None and visit.node == node_id:
            visit.hear(message)

    def node_gone(self, node_id: str) -> None:
        """Nothing more comes from this node."""
        for visit in self._visits.values():
            if visit.node == node_id:
                visit.end(f"node '{node_id}' was disconnected")
