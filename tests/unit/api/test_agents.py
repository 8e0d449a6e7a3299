"""The server's side of the agents' protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any, cast

import pytest

from gpu_scheduler.api.nodes.missed_heartbeats import NodeTimeouts
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.api.nodes.sessions import NewestHellos
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetTenant, Submit
from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import EnvironmentRow, Write
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL
from tests.builders import a_core, a_job, a_tenant


class FullDisk(MemoryStore):
    """A store that fails every commit."""

    def commit(self, writes: list[Write]) -> int:
        raise StoreUnavailable("the disk is full")


def said_to_an_agent(store: MemoryStore, most: int) -> list[str]:
    """The messages to an agent after its hello, until its stream ends or there are so many."""

    async def requests() -> AsyncIterator[pb.AgentMessage]:
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)
        yield pb.AgentMessage(hello=pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory))
        await asyncio.Event().wait()

    async def run() -> list[str]:
        loop = Loop(store, lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        context: Any = None
        heard: list[str] = []
        stream = Agents(loop).session(requests(), context)
        try:
            async with asyncio.timeout(60):
                async for message in stream:
                    heard.append(str(message.WhichOneof("message")))
                    if len(heard) == most:
                        break
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
            await loop.close()
        return heard

    return asyncio.run(run())


@pytest.mark.parametrize(("store", "heard"), [(MemoryStore(), ["welcome"]), (FullDisk(), [])])
def test_agent_is_welcomed_only_after_registration(store: MemoryStore, heard: list[str]) -> None:
    assert said_to_an_agent(store, most=1) == heard


def test_messages_of_replaced_stream_are_ignored() -> None:
    """A frozen agent has still to read what was sent, so its stream is still open."""

    async def run() -> None:
        thawed, said = asyncio.Event(), asyncio.Event()
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)

        async def requests() -> AsyncIterator[pb.AgentMessage]:
            yield pb.AgentMessage(hello=pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory))
            await thawed.wait()
            said.set()
            yield pb.AgentMessage(inventory=inventory)

        store = MemoryStore()
        loop = Loop(store, lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        context: Any = None
        agents = Agents(loop, timeouts=NodeTimeouts(suspect_s=0.05, lost_s=60))
        stream = agents.session(requests(), context)
        async with asyncio.timeout(60):
            assert (await anext(stream)).HasField("welcome")
            events = loop.subscribe(0)
            while (await anext(events))[1].kind != "node_silent":
                pass
            thawed.set()
            await said.wait()
            await loop.apply(SetTenant(a_tenant()))  # comes after all earlier messages
        assert store.nodes()[0].state is NodeState.SUSPECT
        await stream.aclose()  # type: ignore[attr-defined]
        await loop.close()

    asyncio.run(run())


@pytest.mark.parametrize("members", [1, 2])
def test_job_for_just_disconnected_node_is_requeued(members: int) -> None:
    async def run() -> None:
        devices = [pb.Device(index=i, uuid=f"g{i}", model="A100", memory_mb=1) for i in range(2)]
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000, devices=devices)

        async def requests() -> AsyncIterator[pb.AgentMessage]:
            yield pb.AgentMessage(hello=pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory))
            await asyncio.Event().wait()

        store = MemoryStore()
        loop = Loop(store, lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        context: Any = None
        stream = Agents(loop).session(requests(), context)
        assert (await anext(stream)).HasField("welcome")
        await stream.aclose()  # type: ignore[attr-defined]
        assert store.nodes()[0].state is NodeState.ONLINE, "nobody calls it silent yet"
        job = a_job(number=1, members=members, gpus=1)
        async with asyncio.timeout(60):
            events = loop.subscribe(store.last_event())
            await loop.apply(Submit(job, Launch(argv=("true",))))
            while (await anext(events))[1].kind != "requeued":
                pass
        assert store.allocations() == []
        assert store.nodes()[0].state is NodeState.SUSPECT
        await loop.close()

    asyncio.run(run())


def test_job_runs_only_with_captured_environment() -> None:
    async def run() -> None:
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)

        async def requests() -> AsyncIterator[pb.AgentMessage]:
            yield pb.AgentMessage(hello=pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory))
            await asyncio.Event().wait()

        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        context: Any = None
        stream = Agents(loop).session(requests(), context)
        launch = Launch(argv=("true",), captured="the shell")
        async with asyncio.timeout(60):
            assert (await anext(stream)).HasField("welcome")
            events = loop.subscribe(0)
            await loop.apply(Submit(a_job(number=1, gpus=0), launch))
            while (await anext(events))[1].kind != "failed":
                pass
            row = loop.store.job("j1")
            assert row is not None
            assert "environment that was captured" in row.reason
            environment = EnvironmentRow("the shell", (("A", "1"),))
            await loop.apply(Submit(a_job(number=2, gpus=0), launch, environment))
            (order,) = (await anext(stream)).orders.orders
        assert dict(order.start.environment) == {"A": "1"}
        await stream.aclose()  # type: ignore[attr-defined]
        await loop.close()

    asyncio.run(run())


class Thawing(asyncio.SelectorEventLoop):
    """An event loop that can have been suspended for a while."""

    frozen_s = 0.0

    def time(self) -> float:
        return super().time() + self.frozen_s


def test_frozen_server_reads_heartbeats_before_declaring_nodes_silent() -> None:
    async def run(events: Thawing) -> None:
        said: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()

        async def requests() -> AsyncIterator[pb.AgentMessage]:
            while True:
                yield await said.get()

        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)
        said.put_nowait(
            pb.AgentMessage(hello=pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory))
        )
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        context: Any = None
        patience = NodeTimeouts(suspect_s=600, lost_s=3600)
        stream = Agents(loop, timeouts=patience).session(requests(), context)
        assert (await anext(stream)).HasField("welcome")
        events.frozen_s += patience.suspect_s + 10
        for _ in range(5):
            await asyncio.sleep(0.001)  # timers that were due have run
        said.put_nowait(pb.AgentMessage(heartbeat=pb.Heartbeat()))
        await loop.apply(SetTenant(a_tenant()))
        assert loop.core.state.cluster.index.resources("n0").node.state is NodeState.ONLINE
        await stream.aclose()  # type: ignore[attr-defined]
        await loop.close()

    with closing(Thawing()) as events:
        events.run_until_complete(run(events))


@pytest.mark.parametrize(
    ("boot_id", "boot_ms", "is_late"),
    [("one", 4_999, True), ("one", 5_000, False), ("one", 0, False), ("two", 10, False)],
)
def test_hello_older_than_last_one_is_stale(boot_id: str, boot_ms: int, is_late: bool) -> None:
    newest = NewestHellos()
    assert not newest.is_stale(pb.Hello(node="n0", boot_id="one", boot_ms=5_000))
    assert not newest.is_stale(pb.Hello(node="n1", boot_id="one", boot_ms=1))
    assert newest.is_stale(pb.Hello(node="n0", boot_id=boot_id, boot_ms=boot_ms)) is is_late


def test_stale_stream_does_not_replace_newer_one() -> None:
    async def requests(boot_ms: int) -> AsyncIterator[pb.AgentMessage]:
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)
        hello = pb.Hello(node="n0", protocol=PROTOCOL, inventory=inventory, boot_ms=boot_ms)
        yield pb.AgentMessage(hello=hello)
        await asyncio.Event().wait()

    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        agents, context = Agents(loop), cast(Any, None)
        async with asyncio.timeout(60):
            current = aiter(agents.session(requests(20), context))
            assert (await anext(current)).WhichOneof("message") == "welcome"
            assert [message async for message in agents.session(requests(10), context)] == []
        assert agents.connected == ["n0"]
        await current.aclose()  # type: ignore[attr-defined]
        await loop.close()

    asyncio.run(run())
