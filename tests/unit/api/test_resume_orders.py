"""The server sends the order to trust a repaired device until the node acknowledges it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import NodeReported, ResumeDevice, SetTenant
from gpu_scheduler.model.node import Device
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL, TERMINALS, TRUSTS
from tests.builders import a_core, a_tenant

OLD, NEW = (TERMINALS,), (TERMINALS, TRUSTS)


class Site:
    """A server that can be restarted on its store, and one node that connects and disconnects."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_ms = 5_000
        self.loop: Loop

    async def serve(self) -> None:
        self.loop = Loop(self.store, lambda: a_core(nodes=[]), lambda: self.now_ms)
        self.loop.start()
        self.agents = Agents(self.loop)

    async def restart(self) -> None:
        await self.loop.close()
        await self.serve()

    @asynccontextmanager
    async def node(self, abilities: tuple[str, ...] = NEW) -> AsyncIterator["Stream"]:
        """The stream of an agent after hello and welcome."""
        stream = Stream(self, abilities)
        try:
            async with asyncio.timeout(60):
                assert (await anext(stream.heard)).HasField("welcome")
                yield stream
        finally:
            await stream.heard.aclose()

    @property
    def device(self) -> Device:
        return self.store.nodes()[0].devices[0]


class Stream:
    def __init__(self, site: Site, abilities: tuple[str, ...]) -> None:
        self._site = site
        self._says: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        inventory = pb.Inventory(devices=[pb.Device(index=0, uuid="g", model="A100", memory_mb=1)])
        hello = pb.Hello(
            node="n0", protocol=PROTOCOL, inventory=inventory, abilities=list(abilities)
        )
        self._says.put_nowait(pb.AgentMessage(hello=hello))
        context: Any = None
        self.heard: Any = site.agents.session(self._requests(), context)

    async def _requests(self) -> AsyncIterator[pb.AgentMessage]:
        while True:
            yield await self._says.get()
            self._says.task_done()

    async def reads(self, *, trusted: int = 0, healthy: bool = False, problem: str = "") -> None:
        """Send a reading, and wait until all messages are processed."""
        reading = pb.DeviceReading(index=0, healthy=healthy, why="XID 79", trusted=trusted)
        telemetry = pb.Telemetry(readings=[reading], problem=problem)
        self._says.put_nowait(pb.AgentMessage(telemetry=telemetry))
        await self._says.join()
        await self._site.loop.apply(SetTenant(a_tenant()))

    async def receives_resume_order(self) -> pb.Trust:
        message = await anext(self.heard)
        assert message.HasField("trust"), message
        return message.trust

    def receives_nothing(self) -> None:
        (session,) = self._site.agents._sessions.by_node.values()
        assert session.outbox.empty()


def run(scenario: Any) -> None:
    async def whole() -> None:
        site = Site()
        await site.serve()
        try:
            await scenario(site)
        finally:
            await site.loop.close()

    asyncio.run(whole())


def test_reconnected_node_receives_resume_order() -> None:
    async def scenario(site: Site) -> None:
        async with site.node() as node:
            await node.reads()
        await site.loop.apply(ResumeDevice("n0", 0))
        site.now_ms += 3_000
        async with site.node() as node:
            trust = await node.receives_resume_order()
            assert (trust.device, trust.mark, trust.ago_ms) == (0, 5_000, 3_000)

    run(scenario)


def test_next_server_sends_resume_order_that_first_could_not() -> None:
    async def scenario(site: Site) -> None:
        async with site.node() as node:
            await node.reads()
        await site.loop.apply(ResumeDevice("n0", 0))
        await site.restart()
        async with site.node() as node:
            assert (await node.receives_resume_order()).mark == 5_000

    run(scenario)


def test_server_resends_resume_order_until_reading_acknowledges_it() -> None:
    async def scenario(site: Site) -> None:
        async with site.node() as node:
            await site.loop.apply(ResumeDevice("n0", 0))
            assert (await node.receives_resume_order()).mark == 5_000
            await node.reads()
            assert site.device.trust_ms == 5_000, "that reading was of before"
        async with site.node() as node:
            await node.receives_resume_order()
            await node.reads(trusted=5_000)
            assert site.device.trust_ms == 0
        async with site.node() as node:
            await node.reads(trusted=5_000)
            node.receives_nothing()

    run(scenario)


def test_acknowledgement_of_earlier_order_does_not_count_for_next() -> None:
    async def scenario(site: Site) -> None:
        async with site.node() as node:
            marks = []
            for _ in range(2):
                await site.loop.apply(ResumeDevice("n0", 0))
                marks.append((await node.receives_resume_order()).mark)
            assert marks[0] != marks[1]
            await node.reads(trusted=marks[0])
            assert site.device.trust_ms == marks[1]

    run(scenario)


@pytest.mark.parametrize("problem", ["", "GPUs cannot be read"], ids=["fresh", "stale"])
def test_agent_without_acknowledgements_gets_order_until_next_fresh_reading(problem: str) -> None:
    async def scenario(site: Site) -> None:
        async with site.node(OLD) as node:
            await node.reads()
        await site.loop.apply(ResumeDevice("n0", 0))
        async with site.node(OLD) as node:
            await node.receives_resume_order()
            await node.reads(problem=problem)
            assert bool(site.device.trust_ms) is bool(problem)

    run(scenario)


def test_replaced_device_does_not_inherit_resume_order() -> None:
    async def scenario(site: Site) -> None:
        async with site.node() as node:
            await node.reads()
        await site.loop.apply(ResumeDevice("n0", 0))
        other = Device(index=0, uuid="another", model="A100", memory_mb=1)
        await site.loop.apply(
            NodeReported(node_id="n0", cpu_milli=1, memory_mb=1, devices=(other,))
        )
        assert site.device.trust_ms == 0

    run(scenario)
