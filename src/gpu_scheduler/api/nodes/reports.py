"""Facts from the agents: what they say of attempts and devices goes to the core.

What a node says is answered (by an order to forget) only once the end of the attempt is committed.
"""

from __future__ import annotations

import asyncio

import structlog

from gpu_scheduler.api.nodes.gangs import GangCoordinator
from gpu_scheduler.api.nodes.sessions import Session, Sessions
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.gangs import GANG, GangStatus, MemberResult
from gpu_scheduler.control.jobs.lifecycle import (
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    LEASE,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
)
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import (
    Checkpointed,
    DeviceSample,
    DevicesSampled,
    Fact,
    ReplicaChecked,
    Started,
)
from gpu_scheduler.control.nodes.reconcile import AllocationView
from gpu_scheduler.model.measurements import DeviceReading
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import forget_order, readings_of

# --- What a node says, as the core hears it: readings of devices, and ends of members.

GROUNDS = frozenset(
    {TIMEOUT, GANG, PREEMPTED, CANCELLED, NOT_BEGUN, NODE_LOST, GPU_MEMORY, GPU_IDLE, LEASE}
)
"""Why a node may say that it stopped something; other words are not ours."""
LEASE_ENDED = "its node stopped it, as nobody had renewed its lease in time"


def member_end(fact: pb.Fact, now_ms: int) -> MemberResult:
    """How a member ended, as its node tells it now."""
    over = fact.over
    detail = over.detail
    if over.stopped_by == LEASE:
        detail = "; ".join(filter(None, (LEASE_ENDED, detail)))
    return MemberResult(
        exit_code=over.exit_code if over.HasField("exit_code") else None,
        signal=over.signal if over.HasField("signal") else None,
        ran=over.ran,
        stopped_by=over.stopped_by if over.stopped_by in GROUNDS else "",
        detail=detail,
        at_ms=fact.at_ms,
        ended_ms=now_ms - over.ago_ms if _is_known(over) else None,
        run_ms=over.run_ms,
        prolog_failed=over.prolog_failed,
        epilog_failed=over.epilog_failed,
        is_reported=True,
    )


def _is_known(over: pb.Over) -> bool:
    """Tell whether its node saw the end. One that only found it over knows no time that counts."""
    return not over.ran or over.HasField("exit_code") or over.HasField("signal")


def device_read(reading: DeviceReading, trusted: int) -> DeviceSample:
    """What the core is told of one device; what was not measured is None.

    `trusted` is the mark of the last order to trust it that its node has carried out.
    """
    return DeviceSample(
        index=reading.index,
        temperature_c=reading.temperature_c,
        healthy=reading.healthy,
        why=reading.why,
        xid=reading.xid,
        load_percent=reading.load_percent,
        utilisation_percent=(None if reading.load_percent is None else reading.utilisation_percent),
        memory_used_mb=reading.memory_used_mb,
        power_mw=reading.power_mw if reading.power_known else None,
        processes=reading.processes,
        unexplained_mb=reading.unexplained_mb,
        trusted=trusted,
    )


# --- Facts from the agents: what they say of attempts and devices goes to the core.

log = structlog.get_logger("agents")


class ReportHandler:
    """One for all agents. An attempt is over when the last of its `members` is."""

    def __init__(self, loop: Loop, sessions: Sessions) -> None:
        """Nothing was heard yet."""
        self._loop = loop
        self._sessions = sessions
        self._pending: set[asyncio.Future[Outcome]] = set()
        self.members = GangStatus()
        self.committed = AllocationView(loop, self._attempt_over)
        self.gangs = GangCoordinator(
            loop, self.members, sessions, self.tell, self.member_over, self.committed
        )

    def hear_fact(self, session: Session, fact: pb.Fact) -> None:
        """What an agent says of a member; of what nobody knows, that it may go."""
        running = self._loop.core.state.cluster.running.get(fact.allocation_id)
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
            self.gangs.hear_prepared(allocation, fact.member, fact.prepared.port)
        elif kind == "began":
            if self.members.on_started(allocation, fact.member):
                self.tell(Started(allocation.id))
        elif kind == "ready":
            ready = fact.ready
            self.tell(ReplicaChecked(allocation.id, ready.is_ready, ready.port, ready.detail))
        elif kind == "saved":
            self.tell(Checkpointed(allocation.id, fact.saved.ago_ms))
        elif kind == "over":
            self.member_over(allocation, fact.member, member_end(fact, self._loop.now_ms()))

    def _hear_unknown(self, session: Session, fact: pb.Fact) -> None:
        """Its end is committed, or it was never ours: it is to be forgotten, or to stop."""
        kind = fact.WhichOneof("fact")
        is_stored = fact.allocation_id in self.committed.ids
        if kind == "over" and not is_stored:
            session.send(forget_order(fact.allocation_id, fact.member))
        elif kind == "prepared" or (kind == "began" and not is_stored):
            self.gangs.refuse(session.node, fact.allocation_id, fact.member)

    def member_gone(self, allocation_id: str, member: int) -> None:
        """A member ran, and its node has no record of it any more."""
        running = self._loop.core.state.cluster.running.get(allocation_id)
        if running is not None:
            detail = "the node has no record of it any more"
            end = MemberResult(
                exit_code=None, signal=None, detail=detail, at_ms=self._loop.now_ms()
            )
            self.member_over(running.running.allocation, member, end)

    def member_over(self, allocation: Allocation, member: int, end: MemberResult) -> None:
        """The whole attempt is over with its last member; when one fails, the others stop."""
        ended = self.members.on_ended(allocation, member, end)
        if ended is None:
            self._sessions.stop_members(allocation, self.members.to_stop(allocation), GANG)
            return
        self.members.forget(allocation.id)
        outcome = self.tell(ended)
        outcome.add_done_callback(lambda done: self._forget_members(allocation, done))

    def _attempt_over(self, allocation_id: str) -> None:
        """It is over for the core before all its nodes have said so: they drop what they have."""
        for member, node_id, is_told in self.members.places(allocation_id):
            if is_told:
                self._sessions.send(node_id, forget_order(allocation_id, member))
            else:
                self.gangs.refuse(node_id, allocation_id, member)
        self.members.forget(allocation_id)

    def _forget_members(self, allocation: Allocation, outcome: asyncio.Future[Outcome]) -> None:
        """The end is committed, so the nodes need not keep it."""
        if outcome.cancelled() or outcome.exception() is not None:
            return
        for placement in allocation.placements:
            session = self._sessions.by_node.get(placement.node_id)
            if session is not None:
                session.ordered.discard(allocation.id)
                session.send(forget_order(allocation.id, placement.member))

    def hear_readings(self, session: Session, telemetry: pb.Telemetry) -> None:
        """What an agent measured on its devices."""
        node_id, readings = session.node, readings_of(telemetry)
        self._loop.telemetry[node_id] = readings
        self._loop.tallies.note_readings(node_id, readings)
        fresh = not readings.problem
        read = tuple(device_read(one, session.trusted(one, fresh)) for one in readings.readings)
        self.tell(DevicesSampled(node_id, read, fresh=fresh))

    def tell(self, fact: Fact) -> asyncio.Future[Outcome]:
        """Let the core have a fact; the answer comes with its commit."""
        outcome = self._loop.post(fact)
        self._pending.add(outcome)
        outcome.add_done_callback(self._told)
        return outcome

    def _told(self, outcome: asyncio.Future[Outcome]) -> None:
        self._pending.discard(outcome)
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            log.warning("fact not taken in", error=str(error))
