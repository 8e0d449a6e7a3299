"""Streams from the nodes through the agents' sessions: log files, and terminals of jobs.

Both use credits: no side sends more than the other has said it takes. So a slow reader costs a
little memory here and does not block the other streams of the same session.
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

LOG_CHUNKS_AHEAD = 16


@dataclass(slots=True)
class _Reader:
    """A reader of log chunks. None ends the stream early; `problem` says why."""

    node: str
    problem: str = ""
    chunks: asyncio.Queue[pb.LogChunk | None] = field(default_factory=asyncio.Queue)

    def end(self, problem: str) -> None:
        """End the stream after the chunks that have arrived."""
        self.problem = problem
        self.chunks.put_nowait(None)


class LogStreams:
    """The log requests that are open, by number."""

    def __init__(self, send: Callable[[str, pb.ServerMessage], bool]) -> None:
        """`send` sends a message to a node; it returns whether its agent is connected."""
        self._send = send
        self._numbers = count(1)
        self._readers: dict[int, _Reader] = {}

    async def read(self, node_id: str, request: pb.LogRequest) -> AsyncIterator[bytes]:
        """Yield the requested bytes as they arrive."""
        request.request_id = number = next(self._numbers)
        request.chunks = LOG_CHUNKS_AHEAD
        reader = self._readers[number] = _Reader(node_id)
        try:
            if not self._send(node_id, pb.ServerMessage(log_request=request)):
                raise ClusterError(f"node '{node_id}' is not connected, so its logs cannot be read")
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
            del self._readers[number]
            cancel = pb.LogCancel(request_id=number)
            self._send(node_id, pb.ServerMessage(log_cancel=cancel))

    def on_chunk(self, node_id: str, chunk: pb.LogChunk) -> None:
        """Pass a chunk to its reader; drop it if there is none."""
        reader = self._readers.get(chunk.request_id)
        if reader is None or reader.node != node_id or reader.problem:
            return
        if chunk.data and reader.chunks.qsize() >= LOG_CHUNKS_AHEAD:
            reader.end(f"node '{reader.node}' sent more of its log than was requested")
        else:
            reader.chunks.put_nowait(chunk)

    def node_gone(self, node_id: str) -> None:
        """End all streams of a node that has disconnected."""
        for reader in self._readers.values():
            if reader.node == node_id:
                reader.end(f"node '{node_id}' was disconnected while its log was read")


# Terminals

TERMINAL_CHUNKS_AHEAD = 8
OPEN_S = 15.0
"""A little longer than an agent waits for the terminal of a job that has just started."""

Item = bytes | int | None


class TerminalSession:
    """One user at one terminal: yields output and credits for input, in order."""

    def __init__(self, node: str, number: int, send: Callable[[pb.ServerMessage], object]) -> None:
        """`send` sends a message to the node."""
        self.node = node
        self.problem = ""
        self._number = number
        self._send = send
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._unread = 0
        self._credit = 0

    async def wait_open(self) -> None:
        """Return when the terminal is attached; raises if it cannot be."""
        try:
            async with asyncio.timeout(OPEN_S):
                first = await self._items.get()
        except TimeoutError:
            raise ClusterError(
                f"node '{self.node}' does not respond, so its terminal cannot be reached; try again"
            ) from None
        if first is None:
            raise ClusterError(
                self.problem or "its terminal was closed at once; has the job ended?"
            )
        self._items.put_nowait(first)

    async def items(self) -> AsyncIterator[bytes | int]:
        """Yield output, and how many more chunks of input the program takes.

        A chunk of output is acknowledged when the next item is requested. After the end, `problem`
        is the error, if there was one.
        """
        while (item := await self._items.get()) is not None:
            yield item
            if isinstance(item, bytes):
                self._unread -= 1
                credit = pb.TerminalCredit(terminal_id=self._number, chunks=1)
                self._send(pb.ServerMessage(terminal_credit=credit))

    def send_input(self, data: bytes) -> None:
        """Send the user's input to the terminal; each chunk uses one credit."""
        if not self._credit:
            raise InvalidRequest("more input was sent than the terminal takes; wait for credit")
        self._credit -= 1
        chunk = pb.TerminalData(terminal_id=self._number, data=data)
        self._send(pb.ServerMessage(terminal_data=chunk))

    def on_message(self, message: pb.AgentMessage) -> None:
        """Handle the node's message about this terminal."""
        match message.WhichOneof("message"):
            case "terminal_data" if self._unread < TERMINAL_CHUNKS_AHEAD:
                self._unread += 1
                self._items.put_nowait(message.terminal_data.data)
            case "terminal_data":
                self.end(f"node '{self.node}' sent more than was requested")
            case "terminal_credit":
                self._credit += message.terminal_credit.chunks
                self._items.put_nowait(message.terminal_credit.chunks)
            case "terminal_close":
                self.end(message.terminal_close.problem)

    def end(self, problem: str) -> None:
        """End the session after the output that has arrived."""
        self.problem = self.problem or problem
        self._items.put_nowait(None)


class TerminalStreams:
    """The terminals that are open, by number."""

    def __init__(
        self,
        send: Callable[[str, pb.ServerMessage], bool],
        hello_of: Callable[[str], pb.Hello | None],
    ) -> None:
        """`hello_of` returns the hello of a node's agent; None if it is not connected."""
        self._send = send
        self._hello_of = hello_of
        self._numbers = count(1)
        self._sessions: dict[int, TerminalSession] = {}

    @asynccontextmanager
    async def open(self, node_id: str, request: pb.TerminalOpen) -> AsyncIterator[TerminalSession]:
        """Attach to a terminal until the end of the block."""
        self._check(node_id)
        request.terminal_id = number = next(self._numbers)
        request.chunks = TERMINAL_CHUNKS_AHEAD
        session = self._sessions[number] = TerminalSession(
            node_id, number, lambda message: self._send(node_id, message)
        )
        try:
            self._send(node_id, pb.ServerMessage(terminal_open=request))
            await session.wait_open()
            yield session
        finally:
            del self._sessions[number]
            close = pb.TerminalClose(terminal_id=number)
            self._send(node_id, pb.ServerMessage(terminal_close=close))

    def _check(self, node_id: str) -> None:
        hello = self._hello_of(node_id)
        if hello is None:
            raise ClusterError(
                f"node '{node_id}' is not connected, so its terminals cannot be reached; its jobs "
                "keep running"
            )
        if TERMINALS not in hello.abilities:
            raise WrongState(
                f"the agent of node '{node_id}' (version {hello.version}) is too old to forward "
                "terminals; log in to that machine, or update gpu-scheduler there"
            )

    def on_message(self, node_id: str, message: pb.AgentMessage) -> None:
        """Pass a message to its terminal; drop it if that is not open on this node."""
        kind = str(message.WhichOneof("message"))
        session = self._sessions.get(getattr(message, kind).terminal_id)
        if session is not None and session.node == node_id:
            session.on_message(message)

    def node_gone(self, node_id: str) -> None:
        """End all terminals of a node that has disconnected."""
        for session in self._sessions.values():
            if session.node == node_id:
                session.end(f"node '{node_id}' was disconnected")
