"""Gangs over nodes with broken streams, killed servers and members that fail at any moment.

The control loop and the server's side of the protocol are real, on virtual time. Nodes are modelled
by the guarantees of their launchers: a prepared job runs only after a commit, and what has ended
stays ended. Messages are sent and received one by one, as the example says.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from gpu_scheduler.api.nodes.missed_heartbeats import NodeTimeouts
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Cancel, NodeFenced, Submit
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL
from tests.builders import a_core, a_job
from tests.effort import examples

T = TypeVar("T")
NODES = ("n0", "n1", "n2", "n3")
MEMBERS = 3
PREPARE_MS, START_MS = 20_000, 20_000
LIMITS = CoreLimits(
    prepare_timeout_ms=PREPARE_MS,
    gang_start_timeout_ms=START_MS,
    start_timeout_ms=20_000,
    nodes_keep_limits=True,
    max_misstarts=50,
    requeue_after_death=True,
    backoff_ms=100,
    max_backoff_ms=1_000,
)
WORLD = ("crash", "moment", "long", "cancel")
SEEDS = examples(200)
BATCH = 20
Key = tuple[str, int]


class VirtualTimeSelector(selectors.DefaultSelector):
    """Does not wait: advances the time instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.instant = VirtualTimeSelector()
        super().__init__(self.instant)

    def time(self) -> float:
        return self.instant.now


class SlowWriter:
    """Commits after a moment, and no more once its server is dead."""

    def __init__(self) -> None:
        self.dead = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            if not self.dead and not answer.done():
                answer.set_result(work())

        loop.call_later(0.005, do)
        return answer

    def close(self) -> None:
        self.dead = True


class Node:
    """The state of an agent and its launcher: members and their results until forgotten."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.phase: dict[Key, str] = {}
        self.ends: dict[Key, pb.Over] = {}
        self.inbox: deque[pb.Order] = deque()
        self.outbox: deque[pb.AgentMessage] = deque()
        self.stream: asyncio.Queue[pb.AgentMessage | None] | None = None
        self.reader: asyncio.Task[None] | None = None

    # --- the stream

    def connect(self) -> None:
        """Open a new stream: hello, and everything that is known."""
        self.cut()
        self.stream = asyncio.Queue()
        self.stream.put_nowait(pb.AgentMessage(hello=self.hello()))
        for key in self.phase:
            self.tell(key)
        self.reader = asyncio.create_task(self.read(self.world.agents, self.stream))

    def cut(self) -> None:
        """Messages in transit are lost."""
        self.inbox.clear()
        self.outbox.clear()
        if self.stream is not None:
            self.stream.put_nowait(None)
            self.stream = None
        if self.reader is not None:
            self.reader.cancel()
            self.reader = None

    def hello(self) -> pb.Hello:
        device = pb.Device(index=0, model="H100", memory_mb=80_000)
        return pb.Hello(
            node=self.name,
            protocol=PROTOCOL,
            address=f"address-of-{self.name}",
            inventory=pb.Inventory(cpu_milli=64_000, memory_mb=64_000, devices=[device]),
            held=[pb.HeldWork(allocation_id=name, member=member) for name, member in self.phase],
        )

    async def read(self, agents: Agents, stream: asyncio.Queue[pb.AgentMessage | None]) -> None:
        async def requests() -> AsyncIterator[pb.AgentMessage]:
            while (message := await stream.get()) is not None:
                yield message

        async def beat() -> None:
            while True:
                await asyncio.sleep(1)
                stream.put_nowait(pb.AgentMessage(heartbeat=pb.Heartbeat()))

        heart = asyncio.create_task(beat())
        context: Any = None
        session = agents.session(requests(), context)
        try:
            async for message in session:
                self.inbox.extend(message.orders.orders)
        finally:
            heart.cancel()
            await session.aclose()  # type: ignore[attr-defined]
        if self.stream is stream:
            self.stream = None

    def speak(self) -> None:
        """Deliver one message to the server."""
        if self.stream is not None and self.outbox:
            self.stream.put_nowait(self.outbox.popleft())

    def tell(self, key: Key) -> None:
        facts = {
            "prepared": pb.Fact(prepared=pb.Prepared(port=4711 if key[1] == 0 else 0)),
            "runs": pb.Fact(began=pb.Began(pid=1)),
        }
        fact = facts.get(self.phase[key])
        if self.phase[key] == "over":
            fact = pb.Fact(over=self.ends[key])
        if fact is not None:
            fact.allocation_id, fact.member = key
            fact.at_ms = self.world.now_ms()
            self.outbox.append(pb.AgentMessage(facts=pb.Facts(facts=[fact])))

    # --- orders

    def hear(self) -> None:
        """Execute one order."""
        if not self.inbox:
            return
        order = self.inbox.popleft()
        key = (order.allocation_id, order.member)
        match order.WhichOneof("order"):
            case "start":
                assert order.start.prepare_only, "members on several nodes must wait"
                assert order.start.prepare_ms > PREPARE_MS
                if key not in self.phase:
                    self.phase[key] = "preparing"
            case "commit":
                self.commit(key, order.commit.rendezvous)
            case "stop":
                if self.phase.get(key) != "over":
                    self.end(key, ran=self.phase.get(key) == "runs", why=order.stop.why, signal=15)
            case "forget":
                if self.phase.get(key) == "over":
                    del self.phase[key]

    def commit(self, key: Key, rendezvous: pb.Rendezvous) -> None:
        if self.phase.get(key) == "prepared":
            self.world.check_run(key, rendezvous)
            self.phase[key] = "runs"
            self.tell(key)
        elif key not in self.phase:
            self.end(key, ran=False)

    def end(
        self,
        key: Key,
        *,
        ran: bool,
        why: str = "",
        signal: int | None = None,
        code: int | None = None,
    ) -> None:
        self.phase[key] = "over"
        signal = signal if ran and code is None else None
        self.ends[key] = pb.Over(
            ran=ran, exit_code=code if ran else None, signal=signal, stopped_by=why
        )
        self.tell(key)

    def obey(self, *actions: str) -> None:
        """Do these until nothing is left to do."""
        for deed in actions * 6:
            self.do(deed)

    def first(self, phase: str) -> Key | None:
        return next((key for key, found in self.phase.items() if found == phase), None)

    def do(self, deed: str) -> None:
        """Let something happen on this node, if it can."""
        if deed in {"hear", "speak"}:
            getattr(self, deed)()
        elif deed in {"drop", "lose", "back", "wipe"}:
            self.meet_with(deed)
        elif deed == "prepare" and (key := self.first("preparing")):
            self.phase[key] = "prepared"
            self.world.was_prepared.setdefault(key[0], set()).add(key[1])
            self.tell(key)
        elif deed == "refuse" and (key := self.first("preparing")):
            self.end(key, ran=False)
        elif deed == "give_up" and (key := self.first("prepared")):
            self.end(key, ran=False, why="not_begun")
        elif deed in {"finish", "die"} and (key := self.first("runs")):
            self.end(key, ran=True, code=0 if deed == "finish" else 1)

    def meet_with(self, fate: str) -> None:
        """The stream is lost, or the whole machine."""
        if fate == "wipe":
            # Another disk after a restart: nothing runs, and nothing is known of earlier runs.
            self.phase.clear()
        if fate == "lose":
            self.cut()
        elif (self.stream is None) == (fate == "back"):
            self.connect()


class World:
    """Successive servers on one store, and the nodes."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.was_prepared: dict[str, set[int]] = {}
        self.ran: set[Key] = set()
        self.nodes = [Node(name, self) for name in NODES]
        self.start_server()

    def now_ms(self) -> int:
        return 1_000_000 + round(asyncio.get_running_loop().time() * 1000)

    def start_server(self) -> None:
        self.writer = SlowWriter()
        self.loop = Loop(self.store, new_core, self.now_ms, writer=self.writer)
        self.loop.start()
        self.agents = Agents(self.loop, timeouts=NodeTimeouts(suspect_s=3.0))
        self.agents.watch_known_nodes()

    def crash(self) -> None:
        """The server is killed; another one starts from the store."""
        self.writer.dead = True
        task = self.loop._task
        if task is not None:
            task.cancel()
        away = [node for node in self.nodes if node.stream is None]
        for node in self.nodes:
            node.cut()
        self.start_server()
        for node in self.nodes:
            if node not in away:
                node.connect()

    def check_run(self, key: Key, rendezvous: pb.Rendezvous) -> None:
        """Check the guarantees at the moment at which a command runs."""
        stored = {a.id: a for a in self.store.allocations()}
        assert key not in self.ran, f"{key} runs twice"
        self.ran.add(key)
        assert key[0] in stored, f"{key} runs, and nobody holds its devices"
        assert stored[key[0]].rendezvous is not None, f"{key} runs without a stored commit"
        assert self.was_prepared.get(key[0]) == set(range(MEMBERS)), f"{key} runs half prepared"
        others = {k[0] for node in self.nodes for k, p in node.phase.items() if p == "runs"}
        assert others <= {key[0]}, f"{key} runs beside {others}"
        hosts = [f"address-of-{p.node_id}" for p in stored[key[0]].by_rank]
        assert list(rendezvous.hosts) == hosts
        assert (rendezvous.master_address, rendezvous.master_port) == (hosts[0], 4711)

    @property
    def state(self) -> JobState:
        row = self.store.job("j1")
        assert row is not None
        return row.state

    async def heal(self) -> None:
        """End all faults: the gang ends, and is forgotten everywhere."""
        for _ in range(400):
            for node in self.nodes:
                node.do("back")
                for deed in ("hear", "prepare", "finish", "speak") * 3:
                    node.do(deed)
            await asyncio.sleep(0.5)
            if self.state in ENDED and not any(node.phase for node in self.nodes):
                return
        phases = {node.name: node.phase for node in self.nodes}
        raise AssertionError(f"never settled: {self.state}, {phases}")


def new_core() -> Core:
    return a_core(limits=LIMITS)


def on_virtual_time(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = World()
        for node in world.nodes:
            node.connect()
        await asyncio.sleep(0.1)
        launch = Launch(argv=("train",), workdir="/", uid=1000, gid=1000, user="anna")
        gang = a_job(number=1, gpus=1, members=MEMBERS)
        await world.loop.apply(Submit(gang, launch))
        await asyncio.sleep(0.1)
        try:
            await scenario(world)
        finally:
            for node in world.nodes:
                node.cut()
            world.writer.dead = True
            if world.loop._task is not None:
                world.loop._task.cancel()
                with suppress(asyncio.CancelledError):
                    await world.loop._task

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


async def happen(world: World, what: str, number: int) -> None:
    if what == "crash":
        world.crash()
    elif what == "moment":
        await asyncio.sleep(1)
    elif what == "long":
        await asyncio.sleep(12)
    elif what == "cancel":
        world.loop.post(Cancel("j1")).add_done_callback(lambda answer: answer.exception())
    else:
        world.nodes[number].do(what)


USUAL = ("hear",) * 6 + ("speak",) * 6 + ("prepare",) * 4
FAULTS = ("drop", "lose", "back", "back", "give_up", "refuse", "die", "finish", "wipe", *WORLD[:3])


def steps_of(seed: int) -> list[tuple[str, int]]:
    """The events of one world: some kinds of faults, more often in some worlds than in others."""
    chance = random.Random(seed)
    faults = chance.sample(FAULTS, chance.randint(1, 5))
    if chance.random() < 0.2:
        faults.append("cancel")
    rate = chance.choice((0.05, 0.15, 0.3))
    return [
        (
            chance.choice(faults) if chance.random() < rate else chance.choice(USUAL),
            chance.randrange(len(NODES)),
        )
        for _ in range(chance.randint(20, 200))
    ]


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_member_runs_before_all_are_prepared_and_commit_is_stored(first: int) -> None:
    for seed in range(first, first + BATCH):

        async def scenario(world: World, seed: int = seed) -> None:
            for what, number in steps_of(seed):
                await happen(world, what, number)
                await asyncio.sleep(0.002)
            await world.heal()

        try:
            on_virtual_time(scenario)
        except AssertionError as error:
            error.add_note(f"in world {seed}")
            raise


def test_gang_on_healthy_nodes_runs_once_and_completes() -> None:
    async def scenario(world: World) -> None:
        await world.heal()
        assert world.state is JobState.COMPLETED
        assert world.ran == {("j1.1", member) for member in range(MEMBERS)}

    on_virtual_time(scenario)


def members_of(world: World) -> dict[int, Node]:
    """The nodes of the current attempt, by member."""
    (allocation,) = world.store.allocations()
    return {
        placement.member: next(n for n in world.nodes if n.name == placement.node_id)
        for placement in allocation.placements
    }


async def all_prepared(world: World) -> dict[int, Node]:
    """All nodes have prepared their members, and none has reported so."""
    nodes = members_of(world)
    for node in nodes.values():
        node.obey("hear")
        node.do("prepare")
    return nodes


async def committed(world: World) -> dict[int, Node]:
    """The commit is stored and in transit, and no node has received it."""
    nodes = await all_prepared(world)
    for node in nodes.values():
        node.obey("speak")
    await asyncio.sleep(0.1)
    return nodes


def test_commit_is_not_sent_on_repeated_report_before_it_is_stored() -> None:
    async def scenario(world: World) -> None:
        nodes = await all_prepared(world)
        for node in nodes.values():
            node.obey("speak")
        await asyncio.sleep(0.001)
        nodes[1].tell(("j1.1", 1))
        nodes[1].obey("speak")
        await asyncio.sleep(0.002)
        assert world.store.allocations()[0].rendezvous is None
        nodes[1].obey("hear")
        assert not world.ran
        await world.heal()
        assert len(world.ran) == MEMBERS

    on_virtual_time(scenario)


def test_server_restarted_after_commit_sends_it_again() -> None:
    async def scenario(world: World) -> None:
        await committed(world)
        assert not world.ran
        world.crash()
        await world.heal()
        assert world.ran == {("j1.1", member) for member in range(MEMBERS)}
        assert world.state is JobState.COMPLETED

    on_virtual_time(scenario)


def test_server_restarted_before_commit_is_stored_commits_anew() -> None:
    async def scenario(world: World) -> None:
        nodes = await all_prepared(world)
        for node in nodes.values():
            node.obey("speak")
        await asyncio.sleep(0.001)
        world.crash()
        assert world.store.allocations()[0].rendezvous is None
        await world.heal()
        assert world.ran == {("j1.1", member) for member in range(MEMBERS)}

    on_virtual_time(scenario)


def test_committed_member_lost_with_its_node_is_not_restarted() -> None:
    async def scenario(world: World) -> None:
        nodes = await committed(world)
        for node in nodes.values():
            node.obey("hear", "speak")
        await asyncio.sleep(0.1)
        nodes[2].do("wipe")
        await asyncio.sleep(0.1)
        await world.heal()
        assert world.state is JobState.FAILED
        assert world.ran == {("j1.1", member) for member in range(MEMBERS)}

    on_virtual_time(scenario)


def test_committed_gang_is_stopped_but_not_retried_while_node_is_unreachable() -> None:
    async def scenario(world: World) -> None:
        nodes = await committed(world)
        nodes[0].obey("hear")
        nodes[0].do("lose")
        nodes[1].obey("hear", "speak")
        nodes[2].do("lose")
        await asyncio.sleep(START_MS / 1000 + 5)
        nodes[1].obey("hear", "speak")
        nodes[2].do("back")
        await asyncio.sleep(1)
        nodes[2].obey("hear", "speak")
        await asyncio.sleep(30)
        assert [a.id for a in world.store.allocations()] == ["j1.1"], "n0 may still run its member"
        nodes[0].do("back")
        await world.heal()
        assert world.state is JobState.COMPLETED
        assert ("j1.2", 0) in world.ran

    on_virtual_time(scenario)


def test_uncommitted_gang_is_retried_without_report_of_lost_node() -> None:
    async def scenario(world: World) -> None:
        nodes = await all_prepared(world)
        nodes[1].do("lose")
        for member in (0, 2):
            nodes[member].obey("speak")
        await asyncio.sleep(PREPARE_MS / 1000 + 1)
        for _ in range(10):
            for node in world.nodes:
                if node is not nodes[1]:
                    node.obey("hear", "prepare", "speak")
            await asyncio.sleep(1)
        attempts = world.store.attempts("j1")
        late = f"member 1 on {nodes[1].name} was not prepared within 20 s"
        assert attempts[0].detail == f"{late}, and its node does not answer"
        assert world.ran == {("j1.2", member) for member in range(MEMBERS)}
        await world.heal()
        assert world.state is JobState.COMPLETED

    on_virtual_time(scenario)


def test_running_gang_with_dead_node_is_stopped_and_restarts_without_it() -> None:
    async def scenario(world: World) -> None:
        nodes = await committed(world)
        for node in nodes.values():
            node.obey("hear", "speak")
        await asyncio.sleep(0.1)
        assert world.state is JobState.RUNNING
        dead = nodes[1]
        dead.do("lose")
        dead.phase.clear()  # its machine is off
        await world.loop.apply(NodeFenced(dead.name))
        others = [node for node in world.nodes if node is not dead]
        for node in others:
            node.obey("hear")
        assert [a.id for a in world.store.allocations()] == ["j1.1"], "the others have not said it"
        for _ in range(6):
            for node in others:
                node.obey("speak", "hear", "prepare")
            await asyncio.sleep(1)
        assert world.ran >= {("j1.2", member) for member in range(MEMBERS)}
        assert dead not in members_of(world).values()
        await world.heal()
        assert world.state is JobState.COMPLETED

    on_virtual_time(scenario)
