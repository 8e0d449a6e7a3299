"""The server's side of the agents' protocol: streams come, are welcomed, fall silent and go.

What is said in them goes to `agent_facts`, and what is ordered comes from `agent_orders`. A stream
that breaks loses nothing: the agent says all again, and what differs is repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from gpu_scheduler import __version__
from gpu_scheduler.api.nodes.dispatch import OrderDispatcher
from gpu_scheduler.api.nodes.liveness import LivenessTimers, NodeTimeouts
from gpu_scheduler.api.nodes.reports import ReportHandler
from gpu_scheduler.api.nodes.sessions import NewestHellos, Session, Sessions, messages_for
from gpu_scheduler.api.nodes.streams import LogStreams, TerminalStreams
from gpu_scheduler.control.gangs import GANG
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Fact, NodeFenced, NodeReported, NodeSilent
from gpu_scheduler.control.nodes.lost_nodes import LEASE_LABEL, leases_on
from gpu_scheduler.control.nodes.reconcile import reconcile
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.node import TERMINAL_LABEL, Adapter, NodeState, runner_label
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import TERMINALS, NoCommonProtocol, agreed_protocol
from gpu_scheduler.wire.orders import devices_of, stop_order

# --- What an agent says about its node, and whether another agent speaks for that node already.

ALIVE_S = 12.0
"""Who was heard within this time is there; agents say something every 5 s."""


def hello_summary(hello: pb.Hello) -> pb.Hello:
    """What is to be remembered of who an agent is, for as long as its stream lasts."""
    return pb.Hello(
        node=hello.node,
        version=hello.version,
        instance=hello.instance,
        boot_id=hello.boot_id,
        runners=hello.runners,
        address=hello.address,
        boot_ms=hello.boot_ms,
        abilities=hello.abilities,
    )


def node_found(hello: pb.Hello, inventory: pb.Inventory) -> NodeReported:
    """The fact for the core: what the node has, by its first word or by a later one."""
    labels = {**inventory.labels, **{runner_label(runner): "yes" for runner in hello.runners}}
    if hello.boot_ms:
        labels[LEASE_LABEL] = "yes"
    if TERMINALS in hello.abilities:
        labels[TERMINAL_LABEL] = "yes"
    return NodeReported(
        node_id=hello.node,
        cpu_milli=inventory.cpu_milli,
        memory_mb=inventory.memory_mb,
        devices=devices_of(inventory),
        labels=tuple(sorted(labels.items())),
        rack=inventory.rack,
        address=hello.address,
        version=hello.version,
        numa_nodes=inventory.numa_nodes,
        direct_storage=inventory.direct_storage,
        adapters=tuple(
            Adapter(
                name=adapter.name,
                port=adapter.port,
                link=adapter.link,
                rate_gbps=adapter.rate_gbps,
                numa_node=adapter.numa_node,
                active=adapter.active,
            )
            for adapter in inventory.adapters
        ),
        unfit=inventory.unfit,
    )


def refusal(hello: pb.Hello, other: pb.Hello, silent_s: float) -> str:
    """Why an agent is not taken in beside another one of the same name; empty if it is.

    One and the same agent may come again at any time. Another one takes over when the first is
    silent: it was killed, or its machine was, and nobody has noticed yet.
    """
    if hello.instance == other.instance or silent_s > ALIVE_S:
        return ""
    is_here = hello.boot_id == other.boot_id
    where = "on the same machine" if is_here else f"at {other.address or 'another machine'}"
    return (
        f"node '{hello.node}' is connected already, by an agent {where}; give this one another "
        "name with --name (agent.node_name), or stop that one"
    )


# --- The server's side of the agents' protocol: streams come, are welcomed, fall silent and go.

LEAST_LOOK_S = 0.01
HELD_UP_S = 1.0
"""Whoever looks so much later than it wanted to has been frozen, or very busy."""
log = structlog.get_logger("agents")


class Agents:
    """All agents that are connected: their streams, and what each stream begins and ends with.

    `problems` says, by node, why an agent found less than one could wish for.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        patience: NodeTimeouts | None = None,
        term: int = 0,
        may_order: Callable[[], bool] = lambda: True,
    ) -> None:
        """Listen to the loop. Every order carries the `term`, and none goes out unless it may."""
        self._term = term
        self._may_order = may_order
        self._patience = patience or NodeTimeouts()
        self._left: set[str] = set()
        self._silence = LivenessTimers(self._patience, self._tell_of_silence, self._leases_on)
        self._loop = loop
        self.problems: dict[str, str] = {}
        self._sessions = Sessions()
        self.logs = LogStreams(self._sessions.send)
        self.terminals = TerminalStreams(self._sessions.send, self._sessions.introduced)
        self._newest = NewestHellos()
        self._hearing = ReportHandler(loop, self._sessions)
        self._ordering = OrderDispatcher(
            loop, self._sessions, self._hearing, left=self._left, suspect=self._silence.suspect
        )
        self._arrival = asyncio.Event()
        loop.on_effects(self._ordering.carry_out)
        loop.on_reload(self.reconnect_all)

    @property
    def loop(self) -> Loop:
        """The loop whose orders these agents carry out."""
        return self._loop

    @property
    def connected(self) -> list[str]:
        """The nodes whose agents are connected."""
        return sorted(self._sessions.by_node)

    async def wait_for(self, node_id: str) -> None:
        """Return when the node is known and its agent connected."""
        while node_id not in self.problems:
            self._arrival.clear()
            await self._arrival.wait()

    def expect_nodes(self) -> None:
        """Nodes that are known and do not come back in time are silent; called at the start.

        What was known to be gone with a node that is dead is gone still.
        """
        cluster = self._loop.core.state.cluster
        for node_id, resources in cluster.index.by_id.items():
            if node_id in self._sessions.by_node:
                continue
            self._silence.end(node_id)
            self._silence.begin(node_id)
            if resources.node.state is NodeState.DEAD and cluster.by_node.get(resources.ordinal):
                self._hearing.tell(NodeFenced(node_id))

    def reconnect_all(self) -> None:
        """What was believed of the agents may be wrong: let all of them begin anew.

        That a node is silent may have been said to a store that was away, so it is looked for anew.
        """
        self._hearing.members.clear()
        for session in list(self._sessions.by_node.values()):
            session.close()
        self.expect_nodes()

    def close(self) -> None:
        """Send all away, and wait for nobody any more."""
        self._silence.close()
        self.reconnect_all()

    async def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream, from hello to its end."""
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
        hello = first.hello
        try:
            agreed_protocol(hello.protocol, hello.least_protocol, who=f"agent '{hello.node}'")
        except NoCommonProtocol as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if self._newest.is_late(hello):
            log.info("a stream that came late is not heard", node=hello.node)
            return
        rival = self._sessions.by_node.get(hello.node)
        if rival is not None:
            silent_s = asyncio.get_running_loop().time() - rival.heard_s
            if why := refusal(hello, rival.hello, silent_s):
                log.warning("agent refused", node=hello.node, error=why)
                yield pb.ServerMessage(goodbye=pb.Goodbye(reason=why))
                return
        session = self._open(hello)
        listener = asyncio.create_task(self._listen(session, hello, requests))
        try:
            async for message in messages_for(session, self._term):
                if not self._may_order():
                    log.warning("nothing is ordered, as the lead is lost", node=session.node)
                    break
                yield message
        finally:
            listener.cancel()
            self._close(session)

    def _open(self, hello: pb.Hello) -> Session:
        node_id = hello.node
        old = self._sessions.by_node.get(node_id)
        if old is not None:
            old.close()
            self._cut(node_id)
        now_s = asyncio.get_running_loop().time()
        session = Session(node_id, hello_summary(hello), heard_s=now_s)
        self._sessions.by_node[node_id] = session
        self._hearing.gangs.node_back(node_id)
        self._left.discard(node_id)
        self._silence.end(node_id)
        self._look_later(session, self._patience.suspect_s)
        return session

    def _close(self, session: Session) -> None:
        if self._sessions.by_node.get(session.node) is session:
            del self._sessions.by_node[session.node]
            self._hearing.gangs.node_away(session.node)
            self._cut(session.node)
            log.warning("agent disconnected", node=session.node)
            self._left.add(session.node)
            self._silence.begin(session.node, left=True)

    def _cut(self, node_id: str) -> None:
        """Nothing that was asked for by a stream is answered by the next one."""
        self.logs.node_gone(node_id)
        self.terminals.node_gone(node_id)

    def _look_later(self, session: Session, wait_s: float) -> None:
        events = asyncio.get_running_loop()
        events.call_later(wait_s, self._look, session, events.time() + wait_s)

    def _look(self, session: Session, due_s: float) -> None:
        """A stream can stay open when nobody is there any more: who says nothing is cut off."""
        if self._sessions.by_node.get(session.node) is not session:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - due_s > HELD_UP_S:
            # We were held up ourselves: what was said meanwhile is still to be read.
            self._look_later(session, HELD_UP_S)
            return
        silent_s = now_s - session.heard_s
        left_s = self._patience.suspect_s - silent_s
        if left_s > 0:
            self._look_later(session, max(left_s, LEAST_LOOK_S))
            return
        log.warning("agent is silent", node=session.node, seconds=round(silent_s, 1))
        # Nothing is granted to it from here on.
        session.close()
        self._silence.suspect(session.node)

    def _tell_of_silence(self, fact: Fact) -> None:
        self._hearing.tell(fact)
        if isinstance(fact, NodeSilent):
            self._hearing.gangs.node_silent(fact.node_id)

    def _leases_on(self, node_id: str) -> set[int]:
        """Also of what is placed there until the core has heard that the node is silent."""
        state = self._loop.core.state
        return (leases_on(state, node_id) | {state.limits.lease_ms}) - {0}

    async def _listen(
        self, session: Session, hello: pb.Hello, requests: AsyncIterator[pb.AgentMessage]
    ) -> None:
        """Take in all that one agent says."""
        try:
            await self._welcome(session, hello)
            async for message in requests:
                if session.is_closed:
                    break
                self._hear(session, message)
        except SchedulerError as error:
            log.warning("agent refused", node=session.node, error=str(error))
        finally:
            session.close()

    async def _welcome(self, session: Session, hello: pb.Hello) -> None:
        """Take the agent in, then say so: one that is refused must not think that all is well."""
        await self._loop.apply(node_found(hello, hello.inventory))
        if session.is_closed:
            return
        welcome = pb.Welcome(
            version=__version__,
            protocol=agreed_protocol(hello.protocol, hello.least_protocol, who=hello.node),
            heartbeat_ms=5_000,
            term=self._term,
        )
        session.send(pb.ServerMessage(welcome=welcome))
        session.is_welcome = True
        self._renew(session, hello.boot_ms)
        self.problems[hello.node] = hello.inventory.problem
        self._arrival.set()
        log.info(
            "agent connected",
            node=hello.node,
            gpus=len(hello.inventory.devices),
            detection=hello.inventory.detection,
            held=len(hello.held),
        )
        self._repair(session, {(work.allocation_id, work.member) for work in hello.held})
        self._trust_again(session)

    def _repair(self, session: Session, held: set[tuple[str, int]]) -> None:
        """What a node holds, and what it should hold by the books, become the same."""
        repairs = reconcile(self._loop.core.state, session.node, held, self._hearing.committed.ids)
        for order in repairs.starts:
            # What was decided since the agent came is on its way already.
            if order.allocation.id not in session.ordered:
                self._note_repair("ordered again", order.allocation.id)
                launch = self._loop.store.launch(order.job.id)
                self._ordering.send_start(order, launch, only=session.node)
        for stop in repairs.stops:
            self._note_repair("told to stop again", stop.allocation_id)
            self._ordering.send_stop(stop)
        for allocation_id, member in repairs.gone:
            self._note_repair("given up, its record is gone", allocation_id)
            self._hearing.member_gone(allocation_id, member)
        for allocation_id, member in repairs.unknown:
            self._note_repair("stopped, as it is not known here", allocation_id)
            session.send(stop_order(allocation_id, member, "unknown"))
        for allocation_id, member in self._hearing.members.to_stop_on(session.node):
            self._note_repair("stopped, as another member has failed", allocation_id)
            session.send(stop_order(allocation_id, member, GANG))

    def _trust_again(self, session: Session) -> None:
        """Tell a node what somebody looked after while it, or a server, was away."""
        now_ms = self._loop.now_ms()
        for device in self._loop.core.state.cluster.index.resources(session.node).node.devices:
            if device.trust_ms:
                session.trust(device.index, device.trust_ms, max(0, now_ms - device.trust_ms))

    def _note_repair(self, what: str, allocation_id: str) -> None:
        log.warning("repair", what=what, allocation=allocation_id)

    def _hear(self, session: Session, message: pb.AgentMessage) -> None:
        session.heard_s = asyncio.get_running_loop().time()
        match message.WhichOneof("message"):
            case "facts":
                for fact in message.facts.facts:
                    self._hearing.hear_fact(session, fact)
            case "telemetry":
                self._hearing.hear_readings(session, message.telemetry)
            case "inventory":
                self._hearing.tell(node_found(session.hello, message.inventory))
            case "log_chunk":
                self.logs.hear(session.node, message.log_chunk)
            case "terminal_data" | "terminal_credit" | "terminal_close":
                self.terminals.hear(session.node, message)
            case "heartbeat":
                # A launcher that keeps no leases may have been replaced by one that does.
                session.hello.boot_ms = message.heartbeat.boot_ms
                self._renew(session, message.heartbeat.boot_ms)

    def _renew(self, session: Session, asked_ms: int) -> None:
        """Grant the leases of a node, counted from when it asked for that by its own clock.

        Only while it is welcome and we lead: whoever counts how long nothing was granted must be
        right. That we lead is asked after the agent has asked, so a grant that is sent late is not
        longer for it.
        """
        if asked_ms and session.is_welcome and self._may_order():
            renewal = pb.Renewal(term=self._term, boot_ms=asked_ms)
            session.send(pb.ServerMessage(renewal=renewal))
