"""The address and runners that an agent advertises, and its reaction to rejection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.jobs import network
from gpu_scheduler.agent.jobs.network import own_address
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.server_link import ServerRejected
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.wire import agent_pb2 as pb
from tests.unit.agent.test_service import OneServer, QuietLauncher, a_config, directory, serving
from tests.unit.agent.test_service import with_agent as with_agent_of

__all__ = ["directory"]


def test_only_available_and_allowed_runners_are_offered(directory: Path) -> None:
    async def test(server: OneServer, _: QuietLauncher) -> None:
        first = await asyncio.wait_for(server.heard.get(), 60)
        assert list(first.hello.runners) == []

    with_agent_of(directory, test, execution_methods=("container",))


def test_rejected_agent_retries(directory: Path) -> None:
    async def test(server: OneServer, _: QuietLauncher) -> None:
        server.says.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="not now")))
        for _again in range(2):
            while (await asyncio.wait_for(server.heard.get(), 60)).WhichOneof("message") != "hello":
                pass

    with_agent_of(directory, test)


def test_permanently_rejected_agent_exits_with_reason(directory: Path) -> None:
    async def run() -> None:
        server = OneServer()
        listening = await serving(directory, server)
        server.says.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="revoked", final=True)))
        found = NodeInventory(cpu_milli=1000, memory_mb=1000)
        agent = Agent(a_config(directory), cast(Launcher, QuietLauncher()), found, None)
        try:
            with pytest.raises(BaseExceptionGroup) as raised:
                await asyncio.wait_for(agent.run(), 60)
            assert raised.value.subgroup(ServerRejected) is not None
            assert "revoked" in str(raised.value.exceptions[0])
        finally:
            await listening.stop(None)

    asyncio.run(run())


def test_agent_cancelled_while_stream_closes_ends(directory: Path) -> None:
    """The sender of a stream takes a moment to end; a SIGTERM in that moment is not lost."""
    is_writing, is_closing = asyncio.Event(), asyncio.Event()

    class ClosedStream:
        async def write(self, message: pb.AgentMessage) -> None:
            if message.WhichOneof("message") == "hello":
                return
            is_writing.set()
            try:
                await asyncio.Event().wait()
            finally:
                is_closing.set()
                await asyncio.Event().wait()

        async def __aiter__(self) -> AsyncIterator[pb.ServerMessage]:
            yield pb.ServerMessage(welcome=pb.Welcome())
            await is_writing.wait()

    @asynccontextmanager
    async def connect() -> AsyncIterator[ClosedStream]:
        yield ClosedStream()

    async def run() -> None:
        found = NodeInventory(cpu_milli=1000, memory_mb=1000)
        agent = Agent(
            a_config(directory), cast(Launcher, QuietLauncher()), found, None, connect=connect
        )
        running = asyncio.create_task(agent.run())
        await asyncio.wait_for(is_closing.wait(), 60)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=20)
        assert done

    asyncio.run(run())


@pytest.mark.parametrize(
    ("targets", "address"),
    [
        (("127.0.0.1:9090",), "127.0.0.1"),
        (("[::1]:9090",), "::1"),
        (("unix:/x", "no.such.host.invalid:1", "127.0.0.1:1"), "127.0.0.1"),
        (("unix:/x",), ""),
        (("no.such.host.invalid:1",), ""),
    ],
)
def test_agent_advertises_address_it_connects_from(targets: tuple[str, ...], address: str) -> None:
    assert own_address(targets) == address


def test_loopback_address_of_own_host_name_is_not_advertised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many systems map their own name to an address that other machines cannot reach."""
    ways = {"head.example": "127.0.1.1", "192.0.2.1": "10.1.2.3", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(network, "_source_address", lambda host, _: ways.get(host, ""))
    assert own_address(("head.example:9090",)) == "10.1.2.3"
    assert own_address(("127.0.0.1:9090", "head.example:9090")) == "127.0.0.1"
    ways["other.example"] = "10.9.9.9"
    assert own_address(("127.0.0.1:9090", "other.example:9090")) == "10.9.9.9"
    del ways["192.0.2.1"]
    assert own_address(("head.example:9090",)) == "127.0.1.1"
