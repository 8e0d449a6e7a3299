"""A network between nodes and servers that delays, cuts and loses, on virtual time.

A connection is two pipes. A pipe delivers in order and late; while the link is cut it waits, as
with TCP retransmission. When a connection breaks, data in transit is lost, and each end learns of
that at its own time: a server may still read what an agent sent on its old connection when the new
one is open already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

import grpc

from gpu_scheduler.wire import agent_pb2 as pb
from tests.faults.virtual_loop import Part, VirtualLoop

Link = tuple[str, str]
"""A node and a server."""


class Host(Protocol):
    """A server, as the network sees it."""

    name: str
    part: Part

    def accept(self, connection: Connection) -> None:
        """A client has connected."""
        ...

    @property
    def is_listening(self) -> bool: ...


class Broken(grpc.aio.AioRpcError):
    """What gRPC raises when a connection is gone."""

    def __init__(self, text: str) -> None:
        nothing = grpc.aio.Metadata()
        super().__init__(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=text)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network = network
        self._link = link
        self._under_way: deque[object] = deque()
        self._arrived: deque[object] = deque()
        self._last_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self.problem = ""
        self.is_over = False

    def send(self, item: object) -> None:
        """Send something; a loss is not reported."""
        loop = self._network.loop
        self._last_at = max(self._last_at, loop.time() + self._network.delay_s())
        self._under_way.append(item)
        loop.tell(None, self._last_at - loop.time(), self.arrive)

    def arrive(self) -> None:
        """Deliver the oldest item, unless the link is cut: then everything comes later."""
        if self._network.is_cut(self._link):
            self._network.when_healed(self._link, self.arrive)
        elif self._under_way and not self.is_over:
            self._arrived.append(self._under_way.popleft())
            self._wake()

    def close(self, problem: str = "") -> None:
        """The reader gets the end; data in transit is lost."""
        self._under_way.clear()
        self.problem = problem
        self.is_over = True
        self._wake()

    async def next(self) -> Any:
        """The next item; None at the end."""
        while not self._arrived:
            if self.problem:
                raise Broken(self.problem)
            if self.is_over:
                return None
            self._waiter = self._network.loop.create_future()
            await self._waiter
        return self._arrived.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection:
    """A stream between the agent of a node and a server."""

    def __init__(self, network: Network, link: Link) -> None:
        self.link = link
        self._network = network
        self.up = Pipe(network, link)
        self.down = Pipe(network, link)
        self.on_server_end: Callable[[], None] = lambda: None
        self._is_open = {"agent": True, "server": True}

    # --- as the agent sees it

    async def write(self, message: pb.AgentMessage) -> None:
        if not self._is_open["agent"]:
            raise Broken("the connection is broken")
        self.up.send(message.SerializeToString())
        if message.HasField("facts") or message.HasField("hello"):
            self._network.chance(self.link[0])

    def __aiter__(self) -> Connection:
        return self

    async def __anext__(self) -> pb.ServerMessage:
        data = await self.down.next()
        if data is None:
            raise StopAsyncIteration
        return pb.ServerMessage.FromString(data)

    # --- as the server sees it

    def requests(self) -> Requests:
        return Requests(self.up)

    def answer(self, message: pb.ServerMessage) -> None:
        if self._is_open["server"]:
            self.down.send(message.SerializeToString())
            self._network.chance(self.link[0])

    # --- its end

    def lose(self, end: str, problem: str) -> None:
        """One end learns that the connection is broken, and the other some time later."""
        if not self._is_open[end]:
            return
        self._end_for(end, problem)
        other = "server" if end == "agent" else "agent"
        if self._is_open[other]:
            loop = self._network.loop
            loop.tell(None, self._network.delay_s(), self._hear_of_end, other, problem)

    def vanish(self, end: str) -> None:
        """One end vanishes silently: the other learns of it only by a timeout."""
        self._end_for(end, "gone")

    def _hear_of_end(self, end: str, problem: str) -> None:
        if self._network.is_cut(self.link):
            self._network.when_healed(self.link, self._hear_of_end, end, problem)
        elif self._is_open[end]:
            self._end_for(end, problem)

    def _end_for(self, end: str, problem: str) -> None:
        if not self._is_open[end]:
            return
        self._is_open[end] = False
        if end == "agent":
            self.down.close(problem)
        else:
            self.up.close()
            self.on_server_end()
        if not any(self._is_open.values()):
            self._network.connections.pop(self, None)


class Requests:
    """The messages of an agent, for the server's own code."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> pb.AgentMessage:
        data = await self._pipe.next()
        if data is None:
            raise StopAsyncIteration
        return pb.AgentMessage.FromString(data)


class Network:
    """All connections. `slow` stretches every delay."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self.slow = 1.0
        self.chance: Callable[[str], None] = lambda _: None
        """Called for every important message with its node."""
        self.connections: dict[Connection, None] = {}
        self._cuts: dict[Link, int] = {}
        self._waiting: dict[Link, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}

    def delay_s(self) -> float:
        """Mostly short, sometimes long."""
        base = self._random.expovariate(200.0)
        if self._random.random() < 0.02:
            base += self._random.uniform(0.05, 2.0)
        return base * self.slow

    # --- cuts

    def is_cut(self, link: Link) -> bool:
        return link in self._cuts

    def cut(self, link: Link) -> None:
        """Nothing goes through; each end of a connection finds out after a while."""
        self._cuts[link] = self._cuts.get(link, 0) + 1
        for connection in list(self.connections):
            if connection.link == link:
                for end in ("agent", "server"):
                    patience_s = self._random.uniform(5, 60)
                    self.loop.tell(None, patience_s, self._give_up, connection, end)

    def heal(self, link: Link) -> None:
        left = self._cuts.get(link, 0) - 1
        if left > 0:
            self._cuts[link] = left
            return
        self._cuts.pop(link, None)
        for callback, args in self._waiting.pop(link, ()):
            self.loop.tell(None, 0.0, callback, *args)

    def when_healed(self, link: Link, callback: Callable[..., None], *args: Any) -> None:
        self._waiting.setdefault(link, []).append((callback, args))

    def _give_up(self, connection: Connection, end: str) -> None:
        if self.is_cut(connection.link):
            connection.lose(end, "nobody answers")

    def reset(self) -> None:
        """Break some connection without a reason."""
        if self.connections:
            connection = self._random.choice(list(self.connections))
            connection.lose(self._random.choice(("agent", "server")), "reset")

    def end_of(self, end: str, name: str, *, quietly: bool) -> None:
        """A process with connections is gone; silently, if its whole machine is."""
        place = 0 if end == "agent" else 1
        for connection in list(self.connections):
            if connection.link[place] == name:
                if quietly:
                    connection.vanish(end)
                    other = "server" if end == "agent" else "agent"
                    self.loop.tell(None, self._random.uniform(5, 60), self._lose, connection, other)
                else:
                    connection.lose(end, "the other side has closed the connection")

    def _lose(self, connection: Connection, end: str) -> None:
        connection.lose(end, "nobody answers")

    # --- connecting

    @asynccontextmanager
    async def connect(self, node: str, host: Host) -> AsyncIterator[Connection]:
        """A stream of the node's agent to a server, for the duration of the block."""
        await asyncio.sleep(self.delay_s())
        link = (node, host.name)
        if self.is_cut(link):
            await asyncio.sleep(self._random.uniform(1, 20))
            raise Broken("cannot be reached")
        if not host.is_listening:
            raise Broken("connection refused")
        connection = Connection(self, link)
        self.connections[connection] = None
        host.accept(connection)
        try:
            yield connection
        finally:
            connection.lose("agent", "closed")
