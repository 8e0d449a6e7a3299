"""Reports of the agents about attempts and devices become messages for the control loop.

An agent keeps the record of an ended attempt until the server has committed the end and sends the
order to forget it. So no end is lost if either side restarts.
"""

from __future__ import annotations

import asyncio

import structlog

from gpu_scheduler.api.nodes.gang_orders import GangCoordinator
from gpu_scheduler.api.nodes.sessions import Session, Sessions
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.gang_commit import GANG, GangStatus, MemberResult
from gpu_scheduler.control.jobs.queueing import (
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
    Command,
    ContainerProgress,
    DeviceSample,
    DevicesSampled,
    Fact,
    Record,
    ReplicaChecked,
    Started,
)
from gpu_scheduler.control.nodes.reconcile import AllocationView
from gpu_scheduler.model.measurements import DeviceReading, NodeFiles
from gpu_scheduler.model.names import clean_text
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import EventRow
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import forget_order, readings_of

STOP_REASONS = frozenset(
    {TIMEOUT, GANG, PREEMPTED, CANCELLED, NOT_BEGUN, NODE_LOST, GPU_MEMORY, GPU_IDLE, LEASE}
)
"""The reasons that an agent may give for stopping an attempt; others are ignored."""
MAX_DIGEST = 80
LEASE_EXPIRED = "its node stopped it because its lease was not renewed in time"
log = structlog.get_logger("agents")


def member_result(fact: pb.Fact, now_ms: int) -> MemberResult:
    """Return how a member ended, from its node's report."""
    over = fact.over
    detail = over.detail
    if over.stopped_by == LEASE:
        detail = "; ".join(filter(None, (LEASE_EXPIRED, detail)))
    return MemberResult(
        exit_code=over.exit_code if over.HasField("exit_code") else None,
        signal=over.signal if over.HasField("signal") else None,
        ran=over.ran,
        stopped_by=over.stopped_by if over.stopped_by in STOP_REASONS else "",
        detail=detail,
        at_ms=fact.at_ms,
        ended_ms=now_ms - over.ago_ms if _has_end_time(over) else None,
        run_ms=over.run_ms,
        prolog_failed=over.prolog_failed,
        epilog_failed=over.epilog_failed,
        image_digest=over.image_digest if len(over.image_digest) <= MAX_DIGEST else "",
        is_reported=True,
    )


def _has_end_time(over: pb.Over) -> bool:
    """Whether the node observed the end; otherwise it does not know when that was."""
    return not over.ran or over.HasField("exit_code") or over.HasField("signal")


def device_sample(reading: DeviceReading, trusted: int) -> DeviceSample:
    """Return the sample of one device; values that were not measured are None.

    `trusted` is the mark of the last trust order that its node has executed.
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


class ReportHandler:
    """Handles the reports of all agents. An attempt ends with the last of its `members`."""

    def __init__(self, loop: Loop, sessions: Sessions) -> None:
        """Post reports to `loop`; send orders through `sessions`."""
        self._loop = loop
        self._sessions = sessions
        self._pending: set[asyncio.Future[Outcome]] = set()
        self.members = GangStatus()
        self.committed = AllocationView(loop, self._on_attempt_ended)
        self.gangs = GangCoordinator(
            loop, self.members, sessions, self.post, self.member_ended, self.committed
        )

    def handle_report(self, session: Session, fact: pb.Fact) -> None:
        """Handle an agent's report about a member."""
        running = self._loop.core.state.cluster.running.get(fact.allocation_id)
        kind = fact.WhichOneof("fact")
        if running is None:
            self._handle_unknown(session, fact)
            return
        allocation = running.running.allocation
        if not allocation.is_on(session.node, fact.member):
            log.warning(
                "report about another node's member rejected",
                node=session.node,
                allocation=allocation.id,
                member=fact.member,
                fact=kind,
            )
        elif kind == "prepared":
            self.gangs.on_prepared(allocation, fact.member, fact.prepared.port)
        elif kind == "began":
            if self.members.on_started(allocation, fact.member):
                self.post(Started(allocation.id))
        elif kind == "ready":
            ready = fact.ready
            self.post(ReplicaChecked(allocation.id, ready.is_ready, ready.port, ready.detail))
        elif kind == "container":
            where = (allocation.id, fact.member, session.node)
            self.post(ContainerProgress(*where, fact.container.phase))
        elif kind == "saved":
            self.post(Checkpointed(allocation.id, fact.saved.ago_ms))
        elif kind == "over":
            self.member_ended(allocation, fact.member, member_result(fact, self._loop.now_ms()))

    def _handle_unknown(self, session: Session, fact: pb.Fact) -> None:
        """Order the agent to forget or stop an attempt that has ended or never existed."""
        kind = fact.WhichOneof("fact")
        is_stored = fact.allocation_id in self.committed.ids
        if kind == "over" and not is_stored:
            session.send(forget_order(fact.allocation_id, fact.member))
        elif kind == "prepared" or (kind == "began" and not is_stored):
            self.gangs.stop_member(session.node, fact.allocation_id, fact.member)

    def member_lost(self, allocation_id: str, member: int) -> None:
        """End a member that ran and of which its node has no record any more."""
        running = self._loop.core.state.cluster.running.get(allocation_id)
        if running is not None:
            detail = "the node has no record of it any more"
            end = MemberResult(
                exit_code=None, signal=None, detail=detail, at_ms=self._loop.now_ms()
            )
            self.member_ended(running.running.allocation, member, end)

    def member_ended(self, allocation: Allocation, member: int, end: MemberResult) -> None:
        """End the attempt with its last member; stop the others when one fails."""
        ended = self.members.on_ended(allocation, member, end)
        if ended is None:
            self._sessions.stop_members(allocation, self.members.to_stop(allocation), GANG)
            return
        self.members.forget(allocation.id)
        outcome = self.post(ended)
        outcome.add_done_callback(lambda done: self._on_end_committed(allocation, done))

    def _on_attempt_ended(self, allocation_id: str) -> None:
        """Release the members of an attempt that the loop ended before all nodes reported."""
        for member, node_id, is_told in self.members.places(allocation_id):
            if is_told:
                self._sessions.send(node_id, forget_order(allocation_id, member))
            else:
                self.gangs.stop_member(node_id, allocation_id, member)
        self.members.forget(allocation_id)

    def _on_end_committed(self, allocation: Allocation, outcome: asyncio.Future[Outcome]) -> None:
        """Let the nodes forget the attempt once its end is committed."""
        if outcome.cancelled() or outcome.exception() is not None:
            return
        for placement in allocation.placements:
            session = self._sessions.by_node.get(placement.node_id)
            if session is not None:
                session.ordered.discard(allocation.id)
                session.send(forget_order(allocation.id, placement.member))

    def handle_telemetry(self, session: Session, telemetry: pb.Telemetry) -> None:
        """Store an agent's device readings and post them as samples."""
        node_id, readings = session.node, readings_of(telemetry)
        self._loop.telemetry[node_id] = readings
        self._loop.loop_metrics.note_readings(node_id, readings)
        fresh = not readings.problem
        samples = tuple(
            device_sample(one, session.trust_mark(one, fresh)) for one in readings.readings
        )
        self.post(DevicesSampled(node_id, samples, fresh=fresh))

    def handle_heartbeat(self, session: Session, heartbeat: pb.Heartbeat) -> None:
        """Store the size of an agent's files, and post the cuts of logs as events."""
        files = NodeFiles(log_bytes=heartbeat.log_bytes, leftovers=heartbeat.leftovers)
        self._loop.loop_metrics.files[session.node] = files
        events = []
        for cut in heartbeat.log_cuts:
            state = self._loop.core.state
            running = state.cluster.running.get(cut.allocation_id)
            if running is None or not running.running.allocation.is_on(session.node, cut.member):
                continue
            record, task = state.by_allocation[cut.allocation_id]
            data = (
                ("node", session.node),
                ("cut_mb", cut.cut_bytes >> 20),
                ("reason", clean_text(cut.reason)),
            )
            job = record.job
            events.append(
                EventRow(
                    at_ms=0, kind="log_cut", job_id=job.id, task=task, user=job.user, data=data
                )
            )
        if events:
            self.post(Record(tuple(events)))

    def post(self, fact: Command | Fact) -> asyncio.Future[Outcome]:
        """Post a message to the control loop; the future resolves with its commit."""
        outcome = self._loop.post(fact)
        self._pending.add(outcome)
        outcome.add_done_callback(self._on_done)
        return outcome

    def _on_done(self, outcome: asyncio.Future[Outcome]) -> None:
        self._pending.discard(outcome)
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            log.warning("agent report rejected", error=str(error))
