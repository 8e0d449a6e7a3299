"""People at the terminals of jobs on this node, who come through the server.

Each is a socket of `runners/terminal_host.py` on one side and messages of the server's stream on
the other. Bytes are brought across and not looked at. Either side sends only what the other has
said it takes, so that one who is slow holds up neither the stream nor anybody else in it.

The agent may be root, and the directory of the socket belongs to the job's user: who listens there
must be that user, or a link in its place could lead to somebody else's terminal.
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
APPEARS_S = 5.0
"""A job that has just begun may not have opened its socket yet."""
LOOK_AGAIN_S = 0.05
LEAVES_S = 2.0
"""So long the last words of one who leaves wait for a program that reads nothing."""
_CREDENTIALS = struct.Struct("3i")
_NOT_THERE_YET = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
log = structlog.get_logger("agent")

Send = Callable[[pb.AgentMessage], None]


class _Unreachable(Exception):
    """The terminal cannot be joined; the text says why."""


class Terminals:
    """All that are open, by number."""

    def __init__(
        self,
        scratch_dir: Callable[[str, int], str],
        runs: Callable[[str, int], bool],
        send: Send,
    ) -> None:
        """`scratch_dir` says where a member has its socket, and `runs` whether it is not over.

        `send` tells the server something.
        """
        self._scratch_dir = scratch_dir
        self._runs = runs
        self._send = send
        self._visits: dict[int, _Visit] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, message: pb.ServerMessage) -> bool:
        """Obey a message about a terminal; False if it is about something else.

        One about a terminal that is closed by now means nothing.
        """
        match message.WhichOneof("message"):
            case "terminal_open":
                self._begin(message.terminal_open)
            case "terminal_data":
                if (visit := self._visits.get(message.terminal_data.terminal_id)) is not None:
                    visit.inbox.put_nowait(message.terminal_data.data)
            case "terminal_credit":
                if (visit := self._visits.get(message.terminal_credit.terminal_id)) is not None:
                    visit.may_send(message.terminal_credit.chunks)
            case "terminal_close":
                if (visit := self._visits.get(message.terminal_close.terminal_id)) is not None:
                    visit.leave()
            case _:
                return False
        return True

    def close(self) -> None:
        """The server is gone: for the hosts that is a connection that broke."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, asked: pb.TerminalOpen) -> None:
        path = f"{self._scratch_dir(asked.allocation_id, asked.member)}/{SOCKET}"
        runs = partial(self._runs, asked.allocation_id, asked.member)
        visit = self._visits[asked.terminal_id] = _Visit(asked, path, runs, self._send)
        visit.task = task = asyncio.create_task(visit.run())
        self._tasks.add(task)

        def is_over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if self._visits.get(asked.terminal_id) is visit:
                del self._visits[asked.terminal_id]

        task.add_done_callback(is_over)


class _Visit:
    """One person at one terminal. None in the inbox: that one has left."""

    def __init__(
        self, asked: pb.TerminalOpen, path: str, runs: Callable[[], bool], send: Send
    ) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._number = asked.terminal_id
        self._uid = asked.uid
        self._path = path
        self._runs = runs
        self._send = send
        self._credit = asyncio.Semaphore(asked.chunks)
        self.task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """The person has left: what was said before is still brought, if the host takes it."""
        self.inbox.put_nowait(None)
        if self.task is not None:
            asyncio.get_running_loop().call_later(LEAVES_S, self.task.cancel)

    def may_send(self, chunks: int) -> None:
        """The server takes so many pieces more."""
        for _ in range(chunks):
            self._credit.release()

    async def run(self) -> None:
        problem = ""
        try:
            await self._join()
        except _Unreachable as error:
            problem = str(error)
        except OSError as error:
            log.warning("a terminal broke off", path=self._path, error=str(error))
            problem = f"its terminal broke off: {error.strerror or error}"
        close = pb.TerminalClose(terminal_id=self._number, problem=problem)
        self._send(pb.AgentMessage(terminal_close=close))

    async def _join(self) -> None:
        """Until the host has nothing more to say, or the person has left."""
        reader, writer = await asyncio.open_unix_connection(sock=await self._connected())
        sides = (
            asyncio.create_task(self._show(reader)),
            asyncio.create_task(self._bring(writer)),
        )
        self._take(CHUNKS_AHEAD)
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            for side in done:
                side.result()
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            writer.transport.abort()

    async def _connected(self) -> socket.socket:
        clock = asyncio.get_running_loop().time
        give_up = clock() + APPEARS_S
        while True:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                opened.setblocking(False)
                await asyncio.get_running_loop().sock_connect(opened, self._path)
                if self._is_of_user(opened):
                    return opened
            except OSError as error:
                opened.close()
                if error.errno not in _NOT_THERE_YET:
                    why = error.strerror or error
                    raise _Unreachable(f"its terminal cannot be opened: {why}") from error
            except BaseException:
                opened.close()
                raise
            if not self._runs():
                raise _Unreachable("it has just ended")
            if clock() > give_up:
                raise _Unreachable("its terminal is not there")
            await asyncio.sleep(LOOK_AGAIN_S)

    def _is_of_user(self, opened: socket.socket) -> bool:
        """Tell whether the right one listens; False if nobody has taken the connection yet."""
        size = _CREDENTIALS.size
        peer = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, _ = _CREDENTIALS.unpack(peer)
        if uid == self._uid:
            return True
        opened.close()
        if uid >= 0:
            log.warning("not the terminal of its user", path=self._path, uid=uid)
            raise _Unreachable("what is in the place of its terminal is not its user's")
        return False

    async def _show(self, reader: asyncio.StreamReader) -> None:
        """What the host says, as far as somebody takes it."""
        while True:
            await self._credit.acquire()
            data = await reader.read(CHUNK)
            if not data:
                return
            piece = pb.TerminalData(terminal_id=self._number, data=data)
            self._send(pb.AgentMessage(terminal_data=piece))

    async def _bring(self, writer: asyncio.StreamWriter) -> None:
        """What the person says. A host that is gone has said its last word, which is still read."""
        # Nothing is left behind in a buffer: what was taken has been handed on.
        writer.transport.set_write_buffer_limits(0)
        while (data := await self.inbox.get()) is not None:
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            self._take(1)

    def _take(self, chunks: int) -> None:
        credit = pb.TerminalCredit(terminal_id=self._number, chunks=chunks)
        self._send(pb.AgentMessage(terminal_credit=credit))
