"""The agents' streams, as the server holds them: who is there, and what each has yet to hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from gpu_scheduler.model.measurements import DeviceReading
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import TRUSTS
from gpu_scheduler.wire.orders import SESSION_METHOD, stop_order

MOST_ORDERS_AT_ONCE = 500


@dataclass(slots=True, eq=False)
class Session:
    """One agent, as long as its stream lasts. `ordered` is what it was told to start in it.

    `hello` says who it is, and `heard_s` when it last said something, by the event loop's clock.
    `trusts` are the marks of the orders to trust a device that it was given, by device.
    Once it `is_closed`, nothing more is granted to it, and nothing that it says is heard: its agent
    says all of it again on its next stream.
    """

    node: str
    hello: pb.Hello = field(default_factory=pb.Hello)
    heard_s: float = 0.0
    is_welcome: bool = False
    is_closed: bool = False
    ordered: set[str] = field(default_factory=set)
    trusts: dict[int, int] = field(default_factory=dict)
    outbox: asyncio.Queue[pb.ServerMessage | pb.Order | None] = field(default_factory=asyncio.Queue)

    def send(self, item: pb.ServerMessage | pb.Order) -> None:
        """Queue something for the agent."""
        self.outbox.put_nowait(item)

    def trust(self, index: int, mark: int, ago_ms: int = 0) -> None:
        """Let the agent trust a device again, as somebody said so long ago."""
        self.trusts[index] = mark
        trust = pb.Trust(device=index, mark=mark, ago_ms=ago_ms)
        self.send(pb.ServerMessage(trust=trust))

    def trusted(self, reading: DeviceReading, fresh: bool) -> int:
        """The mark of the last such order that was carried out.

        An agent that was made before there were marks says none: its next fresh reading has to do.
        """
        if TRUSTS in self.hello.abilities:
            return reading.trusted
        return self.trusts.get(reading.index, 0) if fresh else 0

    def close(self) -> None:
        """Let the stream end when all before has been sent."""
        self.is_welcome, self.is_closed = False, True
        self.outbox.put_nowait(None)


class Sessions:
    """The agents that are connected, by node."""

    def __init__(self) -> None:
        """Nobody has come."""
        self.by_node: dict[str, Session] = {}

    def send(self, node_id: str, item: pb.ServerMessage | pb.Order) -> bool:
        """Send something to a node; False if its agent is not connected."""
        session = self.by_node.get(node_id)
        if session is not None:
            session.send(item)
        return session is not None

    def stop_members(self, allocation: Allocation, members: Iterable[int], why: str) -> None:
        """Let the nodes of these members stop them."""
        nodes = {placement.member: placement.node_id for placement in allocation.placements}
        for member in members:
            self.send(nodes[member], stop_order(allocation.id, member, why))

    def address(self, node_id: str) -> str:
        """Where other nodes reach this one: as its agent says, else by its name."""
        session = self.by_node.get(node_id)
        return node_id if session is None else session.hello.address or node_id

    def introduced(self, node_id: str) -> pb.Hello | None:
        """What a node said of itself; None until it is welcome."""
        session = self.by_node.get(node_id)
        return None if session is None or not session.is_welcome else session.hello


class NewestHellos:
    """The newest hello of each node, by the clock of its machine.

    A stream that its agent has given up can reach us after the next one. What it says to be held
    there is what was held when it was opened.
    """

    def __init__(self) -> None:
        """None was heard."""
        self._at: dict[str, tuple[str, int]] = {}

    def is_late(self, hello: pb.Hello) -> bool:
        """Tell whether a newer one was heard; else this is the newest."""
        boot_id, boot_ms = self._at.get(hello.node, ("", 0))
        if hello.boot_id == boot_id and 0 < hello.boot_ms < boot_ms:
            return True
        self._at[hello.node] = (hello.boot_id, hello.boot_ms)
        return False


async def messages_for(session: Session, term: int) -> AsyncIterator[pb.ServerMessage]:
    """What is in the outbox; orders that wait together travel together."""
    while (item := await session.outbox.get()) is not None:
        if isinstance(item, pb.ServerMessage):
            yield item
            continue
        orders = [item]
        following: pb.ServerMessage | pb.Order | None = item
        while len(orders) < MOST_ORDERS_AT_ONCE and not session.outbox.empty():
            following = session.outbox.get_nowait()
            if not isinstance(following, pb.Order):
                break
            orders.append(following)
        yield pb.ServerMessage(orders=pb.Orders(term=term, orders=orders))
        if following is None:
            return
        if isinstance(following, pb.ServerMessage):
            yield following


# --- AgentService on a gRPC server, whoever takes the sessions.


class SessionHandler(Protocol):
    """Whoever takes the streams of agents."""

    def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream, from hello to its end."""
        ...


def add_agent_service(server: grpc.aio.Server, agents: SessionHandler) -> None:
    """Offer the agents' service on a gRPC server."""
    service, method = SESSION_METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(
        agents.session,
        request_deserializer=pb.AgentMessage.FromString,
        response_serializer=pb.ServerMessage.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
