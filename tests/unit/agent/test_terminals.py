"""The agent between the server's stream and the terminal sockets."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_scheduler.agent.jobs import terminals
from gpu_scheduler.agent.jobs.terminals import CHUNK, CHUNKS_AHEAD, Terminals
from gpu_scheduler.wire import agent_pb2 as pb

HOST = "j.1.0"


class Rig:
    """A terminal socket, and the server's end."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.heard: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self.guests: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self.runs = True
        self.terminals = Terminals(
            lambda one, member: f"{directory}/{one}.{member}", lambda *_: self.runs, self._send
        )

    def _send(self, message: pb.AgentMessage) -> None:
        self.heard.put_nowait(message)

    async def listen(self) -> asyncio.Server:
        place = Path(self.directory, HOST)
        os.mkdir(place)  # noqa: PTH102 - nothing else goes on in this loop

        def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.guests.put_nowait((reader, writer))

        return await asyncio.start_unix_server(come, place / "terminal.sock")

    def says(self, **message: object) -> None:
        assert self.terminals.handle(pb.ServerMessage(**message))  # type: ignore[arg-type]

    def opens(self, *, uid: int | None = None, chunks: int = 8) -> None:
        own = os.geteuid() if uid is None else uid
        self.says(
            terminal_open=pb.TerminalOpen(
                terminal_id=1, allocation_id="j.1", uid=own, chunks=chunks
            )
        )

    async def next(self) -> pb.AgentMessage:
        return await asyncio.wait_for(self.heard.get(), 60)


@asynccontextmanager
async def a_rig() -> AsyncIterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        rig = Rig(directory)
        try:
            yield rig
        finally:
            rig.terminals.close()
            await asyncio.gather(*rig.terminals._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # closed connections are removed one loop iteration later


def test_bytes_pass_both_ways_and_end_is_reported() -> None:
    async def run() -> None:
        async with a_rig() as rig:
            rig.opens()
            await asyncio.sleep(0)
            async with await rig.listen():
                assert (await rig.next()).terminal_credit.chunks == CHUNKS_AHEAD
                reader, writer = await rig.guests.get()
                rig.says(terminal_data=pb.TerminalData(terminal_id=1, data=b"keys"))
                assert await reader.readexactly(4) == b"keys"
                assert (await rig.next()).terminal_credit.chunks == 1
                writer.write(b"output")
                assert (await rig.next()).terminal_data.data == b"output"
                writer.write(b"end")
                writer.close()
                assert (await rig.next()).terminal_data.data == b"end"
                assert (await rig.next()).terminal_close.problem == ""

    asyncio.run(run())


def test_host_is_read_only_as_fast_as_server_accepts() -> None:
    async def run() -> None:
        async with a_rig() as rig, await rig.listen():
            rig.opens(chunks=2)
            await rig.next()
            _, writer = await rig.guests.get()
            size = 64 * CHUNK
            writer.write(bytes(size))
            got = 0
            for _ in range(2):
                got += len((await rig.next()).terminal_data.data)
            await asyncio.sleep(0.1)
            assert rig.heard.empty(), "there is no credit"
            while got < size:
                rig.says(terminal_credit=pb.TerminalCredit(terminal_id=1, chunks=1))
                got += len((await rig.next()).terminal_data.data)
            writer.close()

    asyncio.run(run())


def test_leaving_client_is_disconnected_after_pending_data() -> None:
    async def run() -> None:
        async with a_rig() as rig, await rig.listen():
            rig.opens()
            await rig.next()
            reader, writer = await rig.guests.get()
            rig.says(terminal_data=pb.TerminalData(terminal_id=1, data=b"bye"))
            rig.says(terminal_close=pb.TerminalClose(terminal_id=1))
            assert await asyncio.wait_for(reader.read(), 60) == b"bye"
            writer.close()

    asyncio.run(run())


def test_socket_owned_by_another_user_is_not_used() -> None:
    async def run() -> None:
        async with a_rig() as rig, await rig.listen():
            rig.opens(uid=os.geteuid() + 1)
            assert "does not belong to the job's user" in (await rig.next()).terminal_close.problem
            reader, writer = await rig.guests.get()
            assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_missing_terminal_times_out(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(terminals, "CONNECT_TIMEOUT_S", 0.1)

    async def run() -> None:
        async with a_rig() as rig:
            rig.opens()
            assert "is not there" in (await rig.next()).terminal_close.problem
            rig.says(terminal_data=pb.TerminalData(terminal_id=1, data=b"late"))

    asyncio.run(run())


def test_terminal_of_ended_job_is_not_awaited() -> None:
    async def run() -> None:
        async with a_rig() as rig:
            rig.runs = False
            rig.opens()
            assert (await rig.next()).terminal_close.problem == "it has just ended"

    asyncio.run(run())


def test_lost_server_connection_disconnects_its_clients() -> None:
    async def run() -> None:
        async with a_rig() as rig, await rig.listen():
            rig.opens()
            await rig.next()
            reader, writer = await rig.guests.get()
            rig.terminals.close()
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()

    asyncio.run(run())
