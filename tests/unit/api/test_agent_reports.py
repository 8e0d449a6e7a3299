"""A node may report only about jobs that were assigned to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import RunCycle, Submit
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL
from tests.builders import a_core, a_job


class Node:
    """A fake agent: messages in `says` are sent, and orders are kept."""

    def __init__(self, name: str, cpus: int) -> None:
        inventory = pb.Inventory(cpu_milli=cpus * 1000, memory_mb=100_000)
        hello = pb.Hello(node=name, protocol=PROTOCOL, instance=name, inventory=inventory)
        hello.runners.append("process")
        hello.boot_ms = 1_000
        self.says: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self.orders: asyncio.Queue[pb.Order] = asyncio.Queue()
        self.heard: list[str | None] = []
        self.is_welcome = asyncio.Event()
        self.says.put_nowait(pb.AgentMessage(hello=hello))

    async def talk(self, agents: Agents) -> None:
        context: Any = None
        async for message in agents.session(self._requests(), context):
            self.heard.append(message.WhichOneof("message"))
            if message.HasField("welcome"):
                self.is_welcome.set()
            for order in message.orders.orders:
                self.orders.put_nowait(order)

    async def _requests(self) -> AsyncIterator[pb.AgentMessage]:
        while True:
            yield await self.says.get()

    def tell(self, *facts: pb.Fact) -> None:
        self.says.put_nowait(pb.AgentMessage(facts=pb.Facts(facts=facts)))

    async def order(self) -> pb.Order:
        return await asyncio.wait_for(self.orders.get(), 60)


class Cluster:
    """A server and its connected nodes."""

    def __init__(self) -> None:
        self.loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        self.agents = Agents(self.loop)
        self._talks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> list[str]:
        return sorted(self.loop.core.state.cluster.running)

    async def add(self, name: str, cpus: int) -> Node:
        node = Node(name, cpus)
        self._talks.append(asyncio.create_task(node.talk(self.agents)))
        await asyncio.wait_for(node.is_welcome.wait(), 60)
        return node

    async def submit(self) -> None:
        job = replace(a_job(gpus=0), id="")
        await self.loop.apply(Submit(job, Launch(argv=("x",), user=job.user)))

    async def has_heard(self, node: Node) -> None:
        """Return when all messages of the node have been processed."""
        node.tell(pb.Fact(allocation_id="never-was.1", over=pb.Over(exit_code=0)))
        order = await node.order()
        assert (order.allocation_id, order.WhichOneof("order")) == ("never-was.1", "forget")
        await self.loop.apply(RunCycle())

    async def close(self) -> None:
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        self.agents.close()
        await self.loop.close()


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    cluster.loop.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def play(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with a_cluster() as cluster:
            await test(cluster)

    asyncio.run(run())


def test_node_cannot_end_job_of_another_node() -> None:
    async def test(cluster: Cluster) -> None:
        owner = await cluster.add("n0", cpus=64)
        await cluster.submit()
        held = (await owner.order()).allocation_id
        other = await cluster.add("n1", cpus=1)
        for member in (0, 1):
            over = pb.Over(exit_code=0, ran=True)
            other.tell(pb.Fact(allocation_id=held, member=member, over=over))
        await cluster.has_heard(other)
        assert cluster.running == [held]
        owner.tell(pb.Fact(allocation_id=held, over=pb.Over(exit_code=0, ran=True)))
        assert (await owner.order()).WhichOneof("order") == "forget"
        assert cluster.running == []

    play(test)


def test_unknown_started_job_is_stopped() -> None:
    async def test(cluster: Cluster) -> None:
        node = await cluster.add("n0", cpus=1)
        node.tell(pb.Fact(allocation_id="job-7.1", member=2, began=pb.Began(pid=1)))
        order = await node.order()
        assert (order.allocation_id, order.member, order.stop.why) == ("job-7.1", 2, "unknown")

    play(test)


def test_start_is_sent_only_after_leases_are_granted() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.submit()
        node = await cluster.add("n0", cpus=64)
        assert (await node.order()).WhichOneof("order") == "start"
        assert node.heard == ["welcome", "renewal", "orders"]
        await cluster.has_heard(node)

    play(test)


def test_lease_expiry_is_awaited_even_where_none_is_held_yet() -> None:
    """Jobs may be placed on a node until the core knows that it is silent."""

    async def test(cluster: Cluster) -> None:
        await cluster.add("n0", cpus=1)
        state = cluster.loop.core.state
        assert cluster.agents._leases_on("n0") == set()
        state.limits = replace(state.limits, lease_ms=60_000)
        assert cluster.agents._leases_on("n0") == {60_000}

    play(test)


def test_cut_log_becomes_event_of_its_job_and_files_are_known() -> None:
    async def test(cluster: Cluster) -> None:
        owner = await cluster.add("n0", cpus=64)
        await cluster.submit()
        held = (await owner.order()).allocation_id
        other = await cluster.add("n1", cpus=1)
        cut = pb.LogCut(allocation_id=held, cut_bytes=5 << 20, reason="too\nlarge")
        for node in (other, owner):
            beat = pb.Heartbeat(log_bytes=7, leftovers=3, log_cuts=[cut])
            node.says.put_nowait(pb.AgentMessage(heartbeat=beat))
            await cluster.has_heard(node)
        events = [event for _, event in cluster.loop.store.events() if event.kind == "log_cut"]
        (event,) = events
        assert (event.job_id, dict(event.data)["node"]) == ("job-1", "n0")
        assert dict(event.data)["cut_mb"] == 5
        assert "\n" not in str(dict(event.data)["reason"])
        files = cluster.loop.loop_metrics.files
        assert (files["n0"].log_bytes, files["n0"].leftovers) == (7, 3)

    play(test)


def test_next_attempt_gets_digest_of_image_that_first_one_ran() -> None:
    async def test(cluster: Cluster) -> None:
        node = await cluster.add("n0", cpus=64)
        await cluster.submit()
        first = await node.order()
        assert not first.start.image_digest
        over = pb.Over(signal=15, ran=True, stopped_by="preempted", image_digest="sha256:1")
        node.tell(pb.Fact(allocation_id=first.allocation_id, over=over))
        orders = {
            order.WhichOneof("order"): order for order in (await node.order(), await node.order())
        }
        assert orders["forget"].allocation_id == first.allocation_id
        assert orders["start"].start.attempt == 2
        assert orders["start"].start.image_digest == "sha256:1"

    play(test)
