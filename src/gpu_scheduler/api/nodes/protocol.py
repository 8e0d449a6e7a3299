"""The agents' protocol: a stream opens with hello, is accepted, reconciled, watched and closed.

Messages of the agents go to `reports` and `streams`; orders come from `dispatch`. A broken stream
loses nothing: the agent sends hello again, and the server reconciles what the agent holds with what
it should hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from gpu_scheduler import __version__
from gpu_scheduler.api.nodes.dispatch import OrderDispatcher
from gpu_scheduler.api.nodes.missed_heartbeats import LivenessTimers, NodeTimeouts
from gpu_scheduler.api.nodes.reports import ReportHandler
from gpu_scheduler.api.nodes.sessions import NewestHellos, Session, Sessions, messages_for
from gpu_scheduler.api.nodes.streams import LogStreams, TerminalStreams
from gpu_scheduler.control.effects import StartOrder
from gpu_scheduler.control.gang_commit import GANG
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Fact, NodeFenced, NodeReported, NodeSilent
from gpu_scheduler.control.nodes.lost_nodes import LEASE_LABEL, leases_on
from gpu_scheduler.control.nodes.reconcile import reconcile
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.names import clean_text
from gpu_scheduler.model.node import TERMINAL_LABEL, Adapter, NodeState, runner_label
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import TERMINALS, NoCommonProtocol, negotiate_protocol
from gpu_scheduler.wire.orders import devices_of, stop_order, value_of

ALIVE_S = 12.0
"""An agent that sent something within this time is alive; agents send a heartbeat every 5 s."""
LEAST_CHECK_S = 0.01
STALLED_S = 1.0
"""A check that runs so much later than planned means that this process was frozen or very busy."""
log = structlog.get_logger("agents")


def hello_summary(hello: pb.Hello) -> pb.Hello:
    """Return the part of a hello that is kept while the stream lasts."""
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


def reported_node(hello: pb.Hello, inventory: pb.Inventory) -> NodeReported:
    """Return the message for the control loop about a node's inventory, without control characters.

    The control loop checks the name of a new node.
    """
    labels = {clean_text(name): clean_text(value) for name, value in inventory.labels.items()}
    labels |= {runner_label(clean_text(runner)): "yes" for runner in hello.runners}
    if hello.boot_ms:
        labels[LEASE_LABEL] = "yes"
    if TERMINALS in hello.abilities:
        labels[TERMINAL_LABEL] = "yes"
    return value_of(
        NodeReported,
        inventory,
        node_id=hello.node,
        devices=devices_of(inventory),
        labels=tuple(sorted(labels.items())),
        rack=clean_text(inventory.rack),
        address=clean_text(hello.address),
        version=clean_text(hello.version),
        adapters=tuple(
            value_of(Adapter, adapter, name=clean_text(adapter.name))
            for adapter in inventory.adapters
        ),
    )


def name_conflict(hello: pb.Hello, other: pb.Hello, silent_s: float) -> str:
    """Return why an agent is rejected because `other` uses its name; empty if it is accepted.

    The same agent may reconnect at any time. Another one takes over when the first is silent: it
    was killed, or its machine was.
    """
    if hello.instance == other.instance or silent_s > ALIVE_S:
        return ""
    is_here = hello.boot_id == other.boot_id
    where = "on the same machine" if is_here else f"at {other.address or 'another machine'}"
    return (
        f"node '{hello.node}' is already connected, by an agent {where}; give this one another "
        "name with --name (agent.node_name), or stop that one"
    )


class Agents:
    """The connected agents and their streams.

    `problems` has, by node, what was wrong when the agent detected its devices.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        timeouts: NodeTimeouts | None = None,
        term: int = 0,
        may_order: Callable[[], bool] = lambda: True,
    ) -> None:
        """Subscribe to the loop. Orders carry the `term`, and are sent only if `may_order()`."""
        self._term = term
        self._may_order = may_order
        self._timeouts = timeouts or NodeTimeouts()
        self._disconnected: set[str] = set()
        self._liveness = LivenessTimers(self._timeouts, self._post_liveness, self._leases_on)
        self._loop = loop
        self.problems: dict[str, str] = {}
        self._sessions = Sessions()
        self.logs = LogStreams(self._sessions.send)
        self.terminals = TerminalStreams(self._sessions.send, self._sessions.hello_of)
        self._newest = NewestHellos()
        self._reports = ReportHandler(loop, self._sessions)
        self._dispatcher = OrderDispatcher(
            loop,
            self._sessions,
            self._reports,
            disconnected=self._disconnected,
            suspect=self._liveness.mark_suspect,
        )
        self._arrival = asyncio.Event()
        loop.on_effects(self._dispatcher.dispatch)
        loop.on_reload(self.reconnect_all)

    @property
    def loop(self) -> Loop:
        """The control loop."""
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

    def watch_known_nodes(self) -> None:
        """Start the liveness timers of all known nodes that are not connected.

        Report dead nodes again whose attempts have not been released.
        """
        cluster = self._loop.core.state.cluster
        for node_id, resources in cluster.index.by_id.items():
            if node_id in self._sessions.by_node:
                continue
            self._liveness.stop(node_id)
            self._liveness.start(node_id)
            if resources.node.state is NodeState.DEAD and cluster.by_node.get(resources.ordinal):
                self._reports.post(NodeFenced(node_id))

    def reconnect_all(self) -> None:
        """Close all sessions, so that every agent reconnects and is reconciled.

        A report of a silent node may have been lost with the store, so all timers start again.
        """
        self._reports.members.clear()
        for session in list(self._sessions.by_node.values()):
            session.close()
        self.watch_known_nodes()

    def close(self) -> None:
        """Close all sessions and stop the timers."""
        self._liveness.close()
        self.reconnect_all()

    async def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve one agent's stream, from hello to its end."""
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
        hello = first.hello
        try:
            negotiate_protocol(hello.protocol, hello.least_protocol, who=f"agent '{hello.node}'")
        except NoCommonProtocol as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if self._newest.is_stale(hello):
            log.info("ignoring stale agent stream", node=hello.node)
            return
        rival = self._sessions.by_node.get(hello.node)
        if rival is not None:
            silent_s = asyncio.get_running_loop().time() - rival.last_message_s
            if why := name_conflict(hello, rival.hello, silent_s):
                log.warning("agent rejected", node=hello.node, error=why)
                yield pb.ServerMessage(goodbye=pb.Goodbye(reason=why))
                return
        session = self._open(hello)
        listener = asyncio.create_task(self._listen(session, hello, requests))
        try:
            async for message in messages_for(session, self._term):
                if not self._may_order():
                    log.warning("orders not sent: leadership lost", node=session.node)
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
            self._end_streams(node_id)
        now_s = asyncio.get_running_loop().time()
        session = Session(node_id, hello_summary(hello), last_message_s=now_s)
        self._sessions.by_node[node_id] = session
        self._reports.gangs.on_node_connected(node_id)
        self._disconnected.discard(node_id)
        self._liveness.stop(node_id)
        self._check_later(session, self._timeouts.suspect_s)
        return session

    def _close(self, session: Session) -> None:
        if self._sessions.by_node.get(session.node) is session:
            del self._sessions.by_node[session.node]
            self._reports.gangs.on_node_disconnected(session.node)
            self._end_streams(session.node)
            log.warning("agent disconnected", node=session.node)
            self._disconnected.add(session.node)
            self._liveness.start(session.node, disconnected=True)

    def _end_streams(self, node_id: str) -> None:
        """End the logs and terminals that were read through a session that has closed."""
        self.logs.node_gone(node_id)
        self.terminals.node_gone(node_id)

    def _check_later(self, session: Session, wait_s: float) -> None:
        events = asyncio.get_running_loop()
        events.call_later(wait_s, self._check_silence, session, events.time() + wait_s)

    def _check_silence(self, session: Session, due_s: float) -> None:
        """Close the session of a silent agent: a stream can stay open after its agent is gone."""
        if self._sessions.by_node.get(session.node) is not session:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - due_s > STALLED_S:
            # This process was stalled: messages that arrived meanwhile are not read yet.
            self._check_later(session, STALLED_S)
            return
        silent_s = now_s - session.last_message_s
        left_s = self._timeouts.suspect_s - silent_s
        if left_s > 0:
            self._check_later(session, max(left_s, LEAST_CHECK_S))
            return
        log.warning("agent is silent", node=session.node, seconds=round(silent_s, 1))
        # It gets no leases from here on.
        session.close()
        self._liveness.mark_suspect(session.node)

    def _post_liveness(self, fact: Fact) -> None:
        self._reports.post(fact)
        if isinstance(fact, NodeSilent):
            self._reports.gangs.on_node_suspect(fact.node_id)

    def _leases_on(self, node_id: str) -> set[int]:
        """Return lease lengths, including those of attempts placed there before it is suspect."""
        state = self._loop.core.state
        return (leases_on(state, node_id) | {state.limits.lease_ms}) - {0}

    async def _listen(
        self, session: Session, hello: pb.Hello, requests: AsyncIterator[pb.AgentMessage]
    ) -> None:
        """Handle all messages of one agent."""
        try:
            await self._accept(session, hello)
            async for message in requests:
                if session.is_closed:
                    break
                self._handle(session, message)
        except SchedulerError as error:
            log.warning("agent rejected", node=session.node, error=str(error))
        finally:
            session.close()

    async def _accept(self, session: Session, hello: pb.Hello) -> None:
        """Register the node, then send Welcome; an agent that is rejected gets none."""
        await self._loop.apply(reported_node(hello, hello.inventory))
        if session.is_closed:
            return
        welcome = pb.Welcome(
            version=__version__,
            protocol=negotiate_protocol(hello.protocol, hello.least_protocol, who=hello.node),
            heartbeat_ms=5_000,
            term=self._term,
        )
        session.send(pb.ServerMessage(welcome=welcome))
        session.is_accepted = True
        self._renew_leases(session, hello.boot_ms)
        self.problems[hello.node] = hello.inventory.problem
        self._arrival.set()
        log.info(
            "agent connected",
            node=hello.node,
            gpus=len(hello.inventory.devices),
            detection=hello.inventory.detection,
            held=len(hello.held),
        )
        starts = self._reconcile(
            session, {(work.allocation_id, work.member) for work in hello.held}
        )
        self._resend_trust(session)
        await self._resend_starts(session, starts)

    def _reconcile(self, session: Session, held: set[tuple[str, int]]) -> list[StartOrder]:
        """Make what the node holds equal to what it should hold; return what it is to start."""
        repairs = reconcile(self._loop.core.state, session.node, held, self._reports.committed.ids)
        for stop in repairs.stops:
            self._note_repair("stop sent again", stop.allocation_id)
            self._dispatcher.send_stop(stop)
        for allocation_id, member in repairs.gone:
            self._note_repair("ended: the node has no record of it", allocation_id)
            self._reports.member_lost(allocation_id, member)
        for allocation_id, member in repairs.unknown:
            self._note_repair("stopped: unknown to the server", allocation_id)
            session.send(stop_order(allocation_id, member, "unknown"))
        for allocation_id, member in self._reports.members.to_stop_on(session.node):
            self._note_repair("stopped: another member has failed", allocation_id)
            session.send(stop_order(allocation_id, member, GANG))
        return repairs.starts

    async def _resend_starts(self, session: Session, starts: list[StartOrder]) -> None:
        """Send start orders again that the node does not know."""
        # Orders that were decided since the agent connected are already sent.
        unsent = [order for order in starts if order.allocation.id not in session.ordered]
        if not unsent:
            return
        launches = await self._dispatcher.read_launches([order.job.id for order in unsent])
        for order in unsent:
            allocation_id = order.allocation.id
            # While the launches were read, it may have ended, or been stopped or sent.
            found = self._loop.core.state.running(allocation_id)
            if session.is_closed or found is None or found[2].stop_why:
                continue
            if allocation_id not in session.ordered:
                self._note_repair("start sent again", allocation_id)
                launch = launches.get(order.job.id)
                self._dispatcher.send_start(order, launch, only=session.node)

    def _resend_trust(self, session: Session) -> None:
        """Send trust orders again that were made while the node or the server was down."""
        now_ms = self._loop.now_ms()
        for device in self._loop.core.state.cluster.index.resources(session.node).node.devices:
            if device.trust_ms:
                session.send_trust(device.index, device.trust_ms, max(0, now_ms - device.trust_ms))

    def _note_repair(self, repair: str, allocation_id: str) -> None:
        log.warning("reconciled attempt", what=repair, allocation=allocation_id)

    def _handle(self, session: Session, message: pb.AgentMessage) -> None:
        session.last_message_s = asyncio.get_running_loop().time()
        match message.WhichOneof("message"):
            case "facts":
                for fact in message.facts.facts:
                    self._reports.handle_report(session, fact)
            case "telemetry":
                self._reports.handle_telemetry(session, message.telemetry)
            case "inventory":
                self._reports.post(reported_node(session.hello, message.inventory))
            case "log_chunk":
                self.logs.on_chunk(session.node, message.log_chunk)
            case "terminal_data" | "terminal_credit" | "terminal_close":
                self.terminals.on_message(session.node, message)
            case "heartbeat":
                # A launcher without leases may have been replaced by one with leases.
                session.hello.boot_ms = message.heartbeat.boot_ms
                self._renew_leases(session, message.heartbeat.boot_ms)
                self._reports.handle_heartbeat(session, message.heartbeat)

    def _renew_leases(self, session: Session, asked_ms: int) -> None:
        """Renew the leases of a node, counted from its request by its own clock.

        Only while the session is accepted and this server is the leader: the liveness timers rely
        on that. Leadership is checked after the agent's request, so a late grant is not longer.
        """
        if asked_ms and session.is_accepted and self._may_order():
            renewal = pb.Renewal(term=self._term, boot_ms=asked_ms)
            session.send(pb.ServerMessage(renewal=renewal))
