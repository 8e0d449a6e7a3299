"""The server's side of the agents' protocol: orders go out, facts come in.

Orders are sent only after their commit, and facts are answered (by an order to forget) only after
theirs. A stream that breaks loses nothing: the agent says all again, and what differs is repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import grpc
import structlog

from gpu_scheduler import __version__
from gpu_scheduler.api.agent_session import Newest, Session, messages_for
from gpu_scheduler.api.gangs import Gangs
from gpu_scheduler.api.node_facts import device_read, member_end
from gpu_scheduler.api.node_found import introduction, node_found, refusal
from gpu_scheduler.api.node_logs import NodeLogs
from gpu_scheduler.api.node_terminals import NodeTerminals
from gpu_scheduler.api.silence import Patience, Silence
from gpu_scheduler.control.committed import Committed
from gpu_scheduler.control.effects import (
    CommitOrder,
    CutOrder,
    Effect,
    NodeGone,
    Outcome,
    StartOrder,
    StopOrder,
    TrustOrder,
    WarnOrder,
)
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.lost import leases_on
from gpu_scheduler.control.members import GANG, MemberEnd, Members
from gpu_scheduler.control.messages import (
    Checkpointed,
    DevicesRead,
    Ended,
    Fact,
    NodeFenced,
    NodeSilent,
    ReplicaChecked,
    Started,
)
from gpu_scheduler.control.reconcile import reconcile
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import (
    forget_order,
    readings_of,
    start_order,
    stop_order,
    warn_order,
)
from gpu_scheduler.wire.versions import NoCommonProtocol, agreed_protocol

LEAST_LOOK_S = 0.01
HELD_UP_S = 1.0
"""Whoever looks so much later than it wanted to has been frozen, or very busy."""
NO_LAUNCH = "how to run it was not submitted with it"
NO_ENVIRONMENT = (
    "the environment that was captured with it is dropped by now (retention.environments_days); "
    "submit it anew"
)
log = structlog.get_logger("agents")


class Agents:
    """All agents that are connected. Carries out the loop's orders through them.

    `problems` says, by node, why an agent found less than one could wish for.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        patience: Patience | None = None,
        term: int = 0,
        may_order: Callable[[], bool] = lambda: True,
    ) -> None:
        """Listen to the loop. Every order carries the `term`, and none goes out unless it may."""
        self._term = term
        self._may_order = may_order
        self._patience = patience or Patience()
        self._left: set[str] = set()
        self._silence = Silence(self._patience, self._tell_of_silence, self._leases_on)
        self.logs = NodeLogs(self._send_to_node)
        self.terminals = NodeTerminals(self._send_to_node, self._introduced)
        self._loop = loop
        self.problems: dict[str, str] = {}
        self._sessions: dict[str, Session] = {}
        self._newest = Newest()
        self._members = Members()
        self._committed = Committed(loop, self._attempt_over)
        self._gangs = Gangs(
            loop, self._members, self, self._tell, self._member_over, self._committed
        )
        self._arrival = asyncio.Event()
        self._answers: set[asyncio.Future[Outcome]] = set()
        self._last_environment: tuple[str, dict[str, str] | None] = ("", None)
        loop.on_effects(self.carry_out)
        loop.on_reload(self.reconnect_all)

    @property
    def loop(self) -> Loop:
        """The loop whose orders these agents carry out."""
        return self._loop

    @property
    def connected(self) -> list[str]:
        """The nodes whose agents are connected."""
        return sorted(self._sessions)

    async def wait_for(self, node_id: str) -> None:
        """Return when the node is known and its agent connected."""
        while node_id not in self.problems:
            self._arrival.clear()
            await self._arrival.wait()

    def expect_nodes(self) -> None:
        """Nodes that are known and do not come back in time are silent; called at the start.

        What was known to be gone with a node that is dead is gone still.
        """
        picture = self._loop.core.book.picture
        for node_id, slot in picture.index.by_id.items():
            if node_id in self._sessions:
                continue
            self._silence.end(node_id)
            self._silence.begin(node_id)
            if slot.node.state is NodeState.DEAD and picture.by_node.get(slot.ordinal):
                self._tell(NodeFenced(node_id))

    # --- orders

    def carry_out(self, effects: list[Effect]) -> None:
        """Send what was decided and committed."""
        starting = [effect.job.id for effect in effects if isinstance(effect, StartOrder)]
        launches = self._loop.store.launches(starting) if starting else {}
        for effect in effects:
            match effect:
                case StartOrder():
                    self._send_start(effect, launches.get(effect.job.id))
                case CommitOrder():
                    self._gangs.commit(effect)
                case NodeGone(node_id):
                    self._gangs.node_gone(node_id)
                case StopOrder():
                    self._send_stop(effect)
                case WarnOrder():
                    self._send_warning(effect)
                case CutOrder() | TrustOrder():
                    self._tell_node(effect)

    def _tell_node(self, effect: CutOrder | TrustOrder) -> None:
        """What concerns a node as a whole; one that is away is told when it comes back."""
        session = self._sessions.get(effect.node_id)
        if session is None:
            return
        if isinstance(effect, CutOrder):
            session.close()
        else:
            session.trust(effect.index, effect.mark)

    def reconnect_all(self) -> None:
        """What was believed of the agents may be wrong: let all of them begin anew.

        That a node is silent may have been said to a store that was away, so it is looked for anew.
        """
        self._members.clear()
        for session in list(self._sessions.values()):
            session.close()
        self.expect_nodes()

    def close(self) -> None:
        """Send all away, and wait for nobody any more."""
        self._silence.close()
        self.reconnect_all()

    def _is_given_back(self, order: StartOrder) -> bool:
        """What was decided for a node that has just left was never ordered: it goes elsewhere."""
        allocation = order.allocation
        node_id = allocation.placements[0].node_id
        if allocation.spans_nodes or node_id in self._sessions or node_id not in self._left:
            return False
        if self._loop.core.book.picture.index.slot(node_id).node.state is NodeState.ONLINE:
            self._silence.suspect(node_id)
        detail = f"node {node_id} was not connected, so it was never ordered there"
        lost = Ended(allocation.id, exit_code=None, ran=False, lost=True, detail=detail)
        self._tell(lost)
        return True

    def _send_start(
        self, order: StartOrder, launch: Launch | None, *, only: str | None = None
    ) -> None:
        allocation, job = order.allocation, order.job
        if only is None and self._is_given_back(order):
            return
        captured = None if launch is None else self._environment(launch.captured)
        if launch is None or (launch.captured and captured is None):
            detail = NO_LAUNCH if launch is None else NO_ENVIRONMENT
            self._tell(Ended(allocation.id, exit_code=None, ran=False, detail=detail))
            return
        limit_ms = self._loop.core.book.picture.limit_ms(job)
        for placement in allocation.placements:
            session = self._sessions.get(placement.node_id)
            if session is None or only not in {None, placement.node_id}:
                continue
            # Before, it has been granted no lease: what it is to start is told with its welcome.
            if session.is_welcome:
                session.ordered.add(allocation.id)
                start = start_order(allocation, placement, job, launch, captured, limit_ms)
                self._gangs.complete_start(start, allocation, placement)
                session.send(start)

    def _environment(self, name: str) -> dict[str, str] | None:
        """A captured environment; the last one is remembered, as jobs come in series."""
        if not name:
            return None
        last, found = self._last_environment
        if last != name or found is None:
            found = self._loop.store.environment(name)
            self._last_environment = (name, found)
        return found

    def _send_stop(self, order: StopOrder) -> None:
        running = self._loop.core.book.picture.running.get(order.allocation_id)
        if running is not None:
            allocation = running.running.allocation
            self._stop_members(allocation, [p.member for p in allocation.placements], order.why)
            self._gangs.stopping(allocation, order.why)

    def _stop_members(self, allocation: Allocation, members: Iterable[int], why: str) -> None:
        nodes = {placement.member: placement.node_id for placement in allocation.placements}
        for member in members:
            session = self._sessions.get(nodes[member])
            if session is not None:
                session.send(stop_order(allocation.id, member, why))

    def _send_warning(self, order: WarnOrder) -> None:
        running = self._loop.core.book.picture.running.get(order.allocation_id)
        for placement in () if running is None else running.running.allocation.placements:
            session = self._sessions.get(placement.node_id)
            if session is not None:
                session.send(warn_order(order.allocation_id, placement.member, order.text))

    def order(self, node_id: str, order: pb.Order) -> bool:
        """Send an order to a node; False if its agent is not connected."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.send(order)
        return session is not None

    def address(self, node_id: str) -> str:
        """Where other nodes reach this one: as its agent says, else by its name."""
        session = self._sessions.get(node_id)
        return node_id if session is None else session.hello.address or node_id

    def _send_to_node(self, node_id: str, message: pb.ServerMessage) -> bool:
        session = self._sessions.get(node_id)
        if session is not None:
            session.send(message)
        return session is not None

    def _introduced(self, node_id: str) -> pb.Hello | None:
        session = self._sessions.get(node_id)
        return None if session is None or not session.is_welcome else session.hello

    # --- sessions

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
        rival = self._sessions.get(hello.node)
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
        old = self._sessions.get(node_id)
        if old is not None:
            old.close()
            self._cut(node_id)
        now_s = asyncio.get_running_loop().time()
        session = Session(node_id, introduction(hello), heard_s=now_s)
        self._sessions[node_id] = session
        self._gangs.node_back(node_id)
        self._left.discard(node_id)
        self._silence.end(node_id)
        self._look_later(session, self._patience.suspect_s)
        return session

    def _close(self, session: Session) -> None:
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._gangs.node_away(session.node)
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
        if self._sessions.get(session.node) is not session:
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
        self._tell(fact)
        if isinstance(fact, NodeSilent):
            self._gangs.node_silent(fact.node_id)

    def _leases_on(self, node_id: str) -> set[int]:
        """Also of what is placed there until the core has heard that the node is silent."""
        book = self._loop.core.book
        return (leases_on(book, node_id) | {book.limits.lease_ms}) - {0}

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
        held = {(work.allocation_id, work.member) for work in hello.held}
        repairs = reconcile(self._loop.core.book, hello.node, held, self._committed.ids)
        log.info(
            "agent connected",
            node=hello.node,
            gpus=len(hello.inventory.devices),
            detection=hello.inventory.detection,
            held=len(held),
        )
        for order in repairs.starts:
            # What was decided since the agent came is on its way already.
            if order.allocation.id not in session.ordered:
                self._note_repair("ordered again", order.allocation.id)
                self._send_start(order, self._loop.store.launch(order.job.id), only=hello.node)
        for stop in repairs.stops:
            self._note_repair("told to stop again", stop.allocation_id)
            self._send_stop(stop)
        for allocation_id, member in repairs.gone:
            self._note_repair("given up, its record is gone", allocation_id)
            self._member_gone(allocation_id, member)
        for allocation_id, member in repairs.unknown:
            self._note_repair("stopped, as it is not known here", allocation_id)
            session.send(stop_order(allocation_id, member, "unknown"))
        for allocation_id, member in self._members.to_stop_on(hello.node):
            self._note_repair("stopped, as another member has failed", allocation_id)
            session.send(stop_order(allocation_id, member, GANG))
        self._trust_again(session)

    def _trust_again(self, session: Session) -> None:
        """Tell a node what somebody looked after while it, or a server, was away."""
        now_ms = self._loop.now_ms()
        for device in self._loop.core.book.picture.index.slot(session.node).node.devices:
            if device.trust_ms:
                session.trust(device.index, device.trust_ms, max(0, now_ms - device.trust_ms))

    def _note_repair(self, what: str, allocation_id: str) -> None:
        log.warning("repair", what=what, allocation=allocation_id)

    # --- facts

    def _hear(self, session: Session, message: pb.AgentMessage) -> None:
        session.heard_s = asyncio.get_running_loop().time()
        match message.WhichOneof("message"):
            case "facts":
                for fact in message.facts.facts:
                    self._hear_fact(session, fact)
            case "telemetry":
                self._hear_readings(session, message.telemetry)
            case "inventory":
                self._tell(node_found(session.hello, message.inventory))
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

    def _hear_fact(self, session: Session, fact: pb.Fact) -> None:
        running = self._loop.core.book.picture.running.get(fact.allocation_id)
        kind = fact.WhichOneof("fact")
        if running is None:
            self._hear_unknown(session, fact)
            return
        allocation = running.running.allocation
        if not allocation.is_on(session.node, fact.member):
            # A node speaks for what was given to it, and for nothing else.
            log.warning(
                "fact dropped, as that is not on this node",
                node=session.node,
                allocation=allocation.id,
                member=fact.member,
                fact=kind,
            )
        elif kind == "prepared":
            self._gangs.hear_prepared(allocation, fact.member, fact.prepared.port)
        elif kind == "began":
            if self._members.began(allocation, fact.member):
                self._tell(Started(allocation.id))
        elif kind == "ready":
            ready = fact.ready
            self._tell(ReplicaChecked(allocation.id, ready.is_ready, ready.port, ready.detail))
        elif kind == "saved":
            self._tell(Checkpointed(allocation.id, fact.saved.ago_ms))
        elif kind == "over":
            self._member_over(allocation, fact.member, member_end(fact))

    def _hear_unknown(self, session: Session, fact: pb.Fact) -> None:
        """Its end is committed, or it was never ours: it is to be forgotten, or to stop."""
        kind = fact.WhichOneof("fact")
        is_stored = fact.allocation_id in self._committed.ids
        if kind == "over" and not is_stored:
            session.send(forget_order(fact.allocation_id, fact.member))
        elif kind == "prepared" or (kind == "began" and not is_stored):
            self._gangs.refuse(session.node, fact.allocation_id, fact.member)

    def _member_gone(self, allocation_id: str, member: int) -> None:
        """A member ran, and its node has no record of it any more."""
        running = self._loop.core.book.picture.running.get(allocation_id)
        if running is not None:
            detail = "the node has no record of it any more"
            end = MemberEnd(exit_code=None, signal=None, detail=detail, at_ms=self._loop.now_ms())
            self._member_over(running.running.allocation, member, end)

    def _member_over(self, allocation: Allocation, member: int, end: MemberEnd) -> None:
        """The whole attempt is over with its last member; when one fails, the others stop."""
        ended = self._members.over(allocation, member, end)
        if ended is None:
            self._stop_members(allocation, self._members.to_stop(allocation), GANG)
            return
        self._members.forget(allocation.id)
        answer = self._tell(ended)
        answer.add_done_callback(lambda done: self._forget_members(allocation, done))

    def _attempt_over(self, allocation_id: str) -> None:
        """It is over for the core before all its nodes have said so: they drop what they have."""
        for member, node_id, is_told in self._members.places(allocation_id):
            if is_told:
                self.order(node_id, forget_order(allocation_id, member))
            else:
                self._gangs.refuse(node_id, allocation_id, member)
        self._members.forget(allocation_id)

    def _forget_members(self, allocation: Allocation, answer: asyncio.Future[Outcome]) -> None:
        """The end is committed, so the nodes need not keep it."""
        if answer.cancelled() or answer.exception() is not None:
            return
        for placement in allocation.placements:
            session = self._sessions.get(placement.node_id)
            if session is not None:
                session.ordered.discard(allocation.id)
                session.send(forget_order(allocation.id, placement.member))

    def _hear_readings(self, session: Session, telemetry: pb.Telemetry) -> None:
        node_id, readings = session.node, readings_of(telemetry)
        self._loop.telemetry[node_id] = readings
        self._loop.tallies.note_readings(node_id, readings)
        fresh = not readings.problem
        read = tuple(device_read(one, session.trusted(one, fresh)) for one in readings.readings)
        self._tell(DevicesRead(node_id, read, fresh=fresh))

    def _tell(self, fact: Fact) -> asyncio.Future[Outcome]:
        answer = self._loop.post(fact)
        self._answers.add(answer)
        answer.add_done_callback(self._told)
        return answer

    def _told(self, answer: asyncio.Future[Outcome]) -> None:
        self._answers.discard(answer)
        if not answer.cancelled() and (error := answer.exception()) is not None:
            log.warning("fact not taken in", error=str(error))
