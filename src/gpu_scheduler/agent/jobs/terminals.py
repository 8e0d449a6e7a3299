"""Connects users, through the server, to the terminals of jobs on this node.

Each connection has a socket of `runners/terminal_host.py` on one side and messages of the server's
stream on the other; the bytes are passed on unread. Each side sends only as much as the other has
granted credit for, so that a slow user blocks neither the stream nor other users.

The agent may be root while the socket's directory belongs to the job's user. So the peer of the
socket must be that user: a link in its place could lead to the terminal of another user.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable
from functools import partial

import structlog

from gpu_scheduler.agent.runners.session import SOCKET
from gpu_scheduler.wire import agent_pb2 as pb

CHUNK = 1 << 15
CHUNKS_AHEAD = 8
CONNECT_TIMEOUT_S = 5.0
"""A job that has just started may not have opened its socket yet."""
CONNECT_RETRY_S = 0.05
FLUSH_TIMEOUT_S = 2.0
"""How long the last input of a user who disconnects waits for a program that does not read."""
_CREDENTIALS = struct.Struct("3i")
_NOT_THERE_YET = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
log = structlog.get_logger("agent")

Send = Callable[[pb.AgentMessage], None]


class _Unreachable(Exception):
    """The terminal cannot be reached; the message says why."""


class Terminals:
    """All open terminal connections, by number."""

    def __init__(
        self,
        scratch_dir: Callable[[str, int], str],
        is_active: Callable[[str, int], bool],
        send: Send,
    ) -> None:
        """`scratch_dir` is the directory of a member's socket; `is_active` whether it runs.

        `send` sends a message to the server.
        """
        self._scratch_dir = scratch_dir
        self._is_active = is_active
        self._send = send
        self._connections: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: pb.ServerMessage) -> bool:
        """Handle a message about a terminal; False if it is about something else.

        A message about a closed terminal is ignored.
        """
        connections = self._connections
        match message.WhichOneof("message"):
            case "terminal_open":
                self._open(message.terminal_open)
            case "terminal_data":
                if (found := connections.get(message.terminal_data.terminal_id)) is not None:
                    found.inbox.put_nowait(message.terminal_data.data)
            case "terminal_credit":
                if (found := connections.get(message.terminal_credit.terminal_id)) is not None:
                    found.add_credit(message.terminal_credit.chunks)
            case "terminal_close":
                if (found := connections.get(message.terminal_close.terminal_id)) is not None:
                    found.disconnect()
            case _:
                return False
        return True

    def close(self) -> None:
        """Close all connections, because the stream to the server is gone."""
        for task in self._tasks:
            task.cancel()

    def _open(self, request: pb.TerminalOpen) -> None:
        path = f"{self._scratch_dir(request.allocation_id, request.member)}/{SOCKET}"
        is_active = partial(self._is_active, request.allocation_id, request.member)
        connection = _Connection(request, path, is_active, self._send)
        self._connections[request.terminal_id] = connection
        connection.task = task = asyncio.create_task(connection.run())
        self._tasks.add(task)

        def on_done(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if self._connections.get(request.terminal_id) is connection:
                del self._connections[request.terminal_id]

        task.add_done_callback(on_done)


class _Connection:
    """One user at one terminal. None in the inbox means that the user has disconnected."""

    def __init__(
        self, request: pb.TerminalOpen, path: str, is_active: Callable[[], bool], send: Send
    ) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._number = request.terminal_id
        self._uid = request.uid
        self._path = path
        self._is_active = is_active
        self._send = send
        self._credit = asyncio.Semaphore(request.chunks)
        self.task: asyncio.Task[None] | None = None

    def disconnect(self) -> None:
        """End the connection after the remaining input has been written, or after a timeout."""
        self.inbox.put_nowait(None)
        if self.task is not None:
            asyncio.get_running_loop().call_later(FLUSH_TIMEOUT_S, self.task.cancel)

    def add_credit(self, chunks: int) -> None:
        """The server accepts this many more chunks of output."""
        for _ in range(chunks):
            self._credit.release()

    async def run(self) -> None:
        problem = ""
        try:
            await self._relay()
        except _Unreachable as error:
            problem = str(error)
        except OSError as error:
            log.warning("terminal connection broke", path=self._path, error=str(error))
            problem = f"its terminal broke off: {error.strerror or error}"
        close = pb.TerminalClose(terminal_id=self._number, problem=problem)
        self._send(pb.AgentMessage(terminal_close=close))

    async def _relay(self) -> None:
        """Pass bytes in both directions until the terminal host or the user disconnects."""
        reader, writer = await asyncio.open_unix_connection(sock=await self._connect())
        sides = (
            asyncio.create_task(self._send_output(reader)),
            asyncio.create_task(self._write_input(writer)),
        )
        self._grant_credit(CHUNKS_AHEAD)
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            for side in done:
                side.result()
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            writer.transport.abort()

    async def _connect(self) -> socket.socket:
        clock = asyncio.get_running_loop().time
        deadline = clock() + CONNECT_TIMEOUT_S
        while True:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                opened.setblocking(False)
                await asyncio.get_running_loop().sock_connect(opened, self._path)
                if self._has_right_peer(opened):
                    return opened
            except OSError as error:
                opened.close()
                if error.errno not in _NOT_THERE_YET:
                    why = error.strerror or error
                    raise _Unreachable(f"its terminal cannot be opened: {why}") from error
            except BaseException:
                opened.close()
                raise
            if not self._is_active():
                raise _Unreachable("it has just ended")
            if clock() > deadline:
                raise _Unreachable("its terminal is not there")
            await asyncio.sleep(CONNECT_RETRY_S)

    def _has_right_peer(self, opened: socket.socket) -> bool:
        """Tell whether the job's user listens; False if no process has accepted yet."""
        size = _CREDENTIALS.size
        peer = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, _ = _CREDENTIALS.unpack(peer)
        if uid == self._uid:
            return True
        opened.close()
        if uid >= 0:
            log.warning("terminal socket belongs to another user", path=self._path, uid=uid)
            raise _Unreachable("the socket of its terminal does not belong to the job's user")
        return False

    async def _send_output(self, reader: asyncio.StreamReader) -> None:
        """Send the terminal's output to the server, as far as there is credit."""
        while True:
            await self._credit.acquire()
            data = await reader.read(CHUNK)
            if not data:
                return
            piece = pb.TerminalData(terminal_id=self._number, data=data)
            self._send(pb.AgentMessage(terminal_data=piece))

    async def _write_input(self, writer: asyncio.StreamWriter) -> None:
        """Write the user's input. After an error go on: the last output may still be read."""
        # Without a buffer `drain` returns only when the bytes have been written.
        writer.transport.set_write_buffer_limits(0)
        while (data := await self.inbox.get()) is not None:
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            self._grant_credit(1)

    def _grant_credit(self, chunks: int) -> None:
        credit = pb.TerminalCredit(terminal_id=self._number, chunks=chunks)
        self._send(pb.AgentMessage(terminal_credit=credit))
