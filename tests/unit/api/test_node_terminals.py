"""Terminals on nodes: flow control in both directions, and every end is reported."""

import asyncio

import pytest

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.api.nodes.streams import TERMINAL_CHUNKS_AHEAD, TerminalSession, TerminalStreams
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL, TERMINALS
from tests.builders import a_core


class Node:
    """Keeps the messages that it is sent, and sends what the test says."""

    def __init__(self, *abilities: str, is_connected: bool = True) -> None:
        self.told: list[pb.ServerMessage] = []
        self.hello = pb.Hello(node="n0", version="0.0.9", abilities=abilities)
        self.terminals = TerminalStreams(self.send, lambda _: self.hello if is_connected else None)

    def send(self, _: str, message: pb.ServerMessage) -> bool:
        self.told.append(message)
        return True

    def count(self, kind: str) -> int:
        return [message.WhichOneof("message") for message in self.told].count(kind)

    def takes(self, chunks: int) -> None:
        credit = pb.TerminalCredit(terminal_id=1, chunks=chunks)
        self.terminals.on_message("n0", pb.AgentMessage(terminal_credit=credit))

    def says(self, data: bytes, node: str = "n0") -> None:
        piece = pb.TerminalData(terminal_id=1, data=data)
        self.terminals.on_message(node, pb.AgentMessage(terminal_data=piece))

    def closes(self, problem: str = "") -> None:
        close = pb.TerminalClose(terminal_id=1, problem=problem)
        self.terminals.on_message("n0", pb.AgentMessage(terminal_close=close))


async def all_of(visit: TerminalSession) -> list[bytes | int]:
    return [item async for item in visit.items()]


def test_output_grants_credit_and_input_needs_credit() -> None:
    async def run() -> None:
        node = Node(TERMINALS)
        node_opens = asyncio.get_running_loop().call_soon
        node_opens(node.takes, 1)
        async with node.terminals.open("n0", pb.TerminalOpen(allocation_id="j.1")) as visit:
            assert node.told[0].terminal_open.chunks == TERMINAL_CHUNKS_AHEAD
            visit.send_input(b"keys")
            with pytest.raises(InvalidRequest, match="more input was sent"):
                visit.send_input(b"more keys")
            for _ in range(TERMINAL_CHUNKS_AHEAD):
                node.says(b"x")
            assert node.count("terminal_credit") == 0, "nobody has taken it yet"
            node.says(b"of another node", node="n1")
            node.closes()
            assert await all_of(visit) == [1, *[b"x"] * TERMINAL_CHUNKS_AHEAD]
            assert node.count("terminal_credit") == TERMINAL_CHUNKS_AHEAD
        assert node.count("terminal_close") == 1
        assert node.count("terminal_data") == 1

    asyncio.run(run())


def test_node_that_exceeds_terminal_credit_is_cut_off() -> None:
    async def run() -> None:
        node = Node(TERMINALS)
        asyncio.get_running_loop().call_soon(node.takes, 8)
        async with node.terminals.open("n0", pb.TerminalOpen()) as visit:
            for _ in range(TERMINAL_CHUNKS_AHEAD + 1):
                node.says(b"x")
            assert len(await all_of(visit)) == 1 + TERMINAL_CHUNKS_AHEAD
            assert "sent more than was requested" in visit.problem

    asyncio.run(run())


@pytest.mark.parametrize(
    ("node", "kind", "says"),
    [
        (Node(TERMINALS, is_connected=False), ClusterError, "'n0' is not connected"),
        (Node("something-else"), WrongState, "(version 0.0.9) is too old"),
    ],
    ids=["away", "old"],
)
def test_unreachable_terminal_is_rejected_with_reason(
    node: Node, kind: type[Exception], says: str
) -> None:
    async def run() -> None:
        with pytest.raises(kind) as refused:
            async with node.terminals.open("n0", pb.TerminalOpen()):
                pytest.fail("it is open")
        assert says in str(refused.value)

    asyncio.run(run())
    assert node.told == [], "an agent that does not know of terminals is not asked"


def test_node_error_is_reported_to_user() -> None:
    async def run() -> None:
        node = Node(TERMINALS)
        asyncio.get_running_loop().call_soon(node.closes, "its terminal is not there")
        with pytest.raises(ClusterError, match="is not there"):
            async with node.terminals.open("n0", pb.TerminalOpen()):
                pytest.fail("it is open")

    asyncio.run(run())


def test_reconnecting_agent_closes_its_former_terminals() -> None:
    """Nothing of its former stream is answered: neither a terminal nor a followed log."""

    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        agents = Agents(loop)
        inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)
        hello = pb.Hello(
            node="n0", protocol=PROTOCOL, inventory=inventory, instance="i", abilities=[TERMINALS]
        )

        async def requests():  # type: ignore[no-untyped-def]
            yield pb.AgentMessage(hello=hello)
            await asyncio.Event().wait()

        context: object = None
        first = agents.session(requests(), context)  # type: ignore[arg-type, no-untyped-call]
        assert (await anext(first)).HasField("welcome")  # type: ignore[arg-type]
        log = agents.logs.read("n0", pb.LogRequest(follow=True))
        reading = asyncio.ensure_future(anext(log))
        opening = asyncio.ensure_future(agents.terminals.open("n0", pb.TerminalOpen()).__aenter__())
        await asyncio.sleep(0)
        second = agents.session(requests(), context)  # type: ignore[arg-type, no-untyped-call]
        await anext(second)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            with pytest.raises(ClusterError, match="was disconnected"):
                await reading
            with pytest.raises(ClusterError, match="was disconnected"):
                await opening
        for stream in (first, second):
            await stream.aclose()  # type: ignore[attr-defined]
        await loop.close()

    asyncio.run(run())
