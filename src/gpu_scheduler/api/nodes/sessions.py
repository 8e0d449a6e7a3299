"""Agent sessions: the connected agents, and the messages that are queued for each of them."""

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
    """One agent, as long as its stream lasts. `ordered` are the attempts it was ordered to start.

    `hello` identifies the agent. `last_message_s` is when it last sent something, by the event
    loop's clock. `trusts` are the marks of the orders to trust a device, by device. A session that
    `is_closed` gets no leases, and its messages are ignored: the agent repeats them all on its next
    stream.
    """

    node: str
    hello: pb.Hello = field(default_factory=pb.Hello)
    last_message_s: float = 0.0
    is_accepted: bool = False
    is_closed: bool = False
    ordered: set[str] = field(default_factory=set)
    trusts: dict[int, int] = field(default_factory=dict)
    outbox: asyncio.Queue[pb.ServerMessage | pb.Order | None] = field(default_factory=asyncio.Queue)

    def send(self, item: pb.ServerMessage | pb.Order) -> None:
        """Queue a message or order for the agent."""
        self.outbox.put_nowait(item)

    def send_trust(self, index: int, mark: int, ago_ms: int = 0) -> None:
        """Order the agent to trust a device again; an admin decided that `ago_ms` ago."""
        self.trusts[index] = mark
        trust = pb.Trust(device=index, mark=mark, ago_ms=ago_ms)
        self.send(pb.ServerMessage(trust=trust))

    def trust_mark(self, reading: DeviceReading, fresh: bool) -> int:
        """Return the mark of the last trust order that the agent has executed.

        An agent of an older version reports no marks: its next fresh reading counts as executed.
        """
        if TRUSTS in self.hello.abilities:
            return reading.trusted
        return self.trusts.get(reading.index, 0) if fresh else 0

    def close(self) -> None:
        """End the stream after everything that is queued."""
        self.is_accepted, self.is_closed = False, True
        self.outbox.put_nowait(None)


class Sessions:
    """The connected agents, by node."""

    def __init__(self) -> None:
        """Start without sessions."""
        self.by_node: dict[str, Session] = {}

    def send(self, node_id: str, item: pb.ServerMessage | pb.Order) -> bool:
        """Send a message or order to a node; return False if its agent is not connected."""
        session = self.by_node.get(node_id)
        if session is not None:
            session.send(item)
        return session is not None

    def stop_members(self, allocation: Allocation, members: Iterable[int], why: str) -> None:
        """Order the nodes of these members to stop them."""
        nodes = {placement.member: placement.node_id for placement in allocation.placements}
        for member in members:
            self.send(nodes[member], stop_order(allocation.id, member, why))

    def address(self, node_id: str) -> str:
        """Return where other nodes reach this one: the agent's address, or else the node name."""
        session = self.by_node.get(node_id)
        return node_id if session is None else session.hello.address or node_id

    def hello_of(self, node_id: str) -> pb.Hello | None:
        """Return the hello of a node's agent; None if it is not accepted."""
        session = self.by_node.get(node_id)
        return None if session is None or not session.is_accepted else session.hello


class NewestHellos:
    """The newest hello of each node, by the clock of its machine.

    A stream that its agent has abandoned can reach the server after the next one. The work that it
    lists is out of date.
    """

    def __init__(self) -> None:
        """Start without hellos."""
        self._at: dict[str, tuple[str, int]] = {}

    def is_stale(self, hello: pb.Hello) -> bool:
        """Whether a newer hello was received; if not, record this one as the newest."""
        boot_id, boot_ms = self._at.get(hello.node, ("", 0))
        if hello.boot_id == boot_id and 0 < hello.boot_ms < boot_ms:
            return True
        self._at[hello.node] = (hello.boot_id, hello.boot_ms)
        return False


async def messages_for(session: Session, term: int) -> AsyncIterator[pb.ServerMessage]:
    """Yield the queued messages; queued orders are sent together in one message."""
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


class SessionHandler(Protocol):
    """Serves the streams of agents."""

    def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve one agent's stream, from hello to its end."""
        ...


def add_agent_service(server: grpc.aio.Server, agents: SessionHandler) -> None:
    """Add AgentService to a gRPC server."""
    service, method = SESSION_METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(
        agents.session,
        request_deserializer=pb.AgentMessage.FromString,
        response_serializer=pb.ServerMessage.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
