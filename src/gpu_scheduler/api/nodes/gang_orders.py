"""Gangs over several nodes: prepare on all nodes, then commit; end members that never ran.

The control loop decides and the store records; this module only sends orders and tracks the
members' reports. Everything can be repeated: an agent that reconnects reports what it has prepared,
and gets the commit if there is one.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.api.nodes.sessions import Sessions
from gpu_scheduler.control.effects import CommitOrder
from gpu_scheduler.control.gang_commit import GangStatus, MemberResult
from gpu_scheduler.control.jobs.queueing import NOT_BEGUN
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Prepared
from gpu_scheduler.control.nodes.reconcile import AllocationView
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import commit_order, rendezvous_of, stop_order

HOLD_LONGER_MS = 15_000
"""How much longer prepared members wait for the commit than the server waits for all members: they
give up by themselves only where the server is unreachable."""
LONGEST_HOLD_MS = 24 * 3_600_000
OnMemberEnded = Callable[[Allocation, int, MemberResult], None]


class GangCoordinator:
    """Coordinates all gangs. `on_ended` is called for members that end without a report."""

    def __init__(
        self,
        loop: Loop,
        members: GangStatus,
        sessions: Sessions,
        post: Callable[[Prepared], object],
        on_ended: OnMemberEnded,
        committed: AllocationView,
    ) -> None:
        """Start with all nodes reachable."""
        self._loop = loop
        self._members = members
        self._sessions = sessions
        self._post = post
        self._on_ended = on_ended
        self._committed = committed
        self._suspect: set[str] = set()

    # Orders

    def complete_start(self, order: pb.Order, allocation: Allocation, placement: Placement) -> None:
        """Complete the start order of a gang member: addresses of the others, prepare only."""
        start = order.start
        if not start.HasField("rendezvous"):
            return
        start.rendezvous.CopyFrom(rendezvous_of(allocation, placement, self._hosts(allocation)))
        if allocation.spans_nodes:
            start.prepare_only = True
            start.prepare_ms = self._hold_ms()

    def commit(self, order: CommitOrder) -> None:
        """Send the stored commit to all members."""
        for placement in order.allocation.placements:
            self._sessions.send(placement.node_id, commit_order(order.allocation, placement))

    def on_stopping(self, allocation: Allocation, why: str) -> None:
        """Note who was late, and end the members on dead or unreachable nodes."""
        if not allocation.spans_nodes:
            return
        if why == NOT_BEGUN:
            limits = self._loop.core.state.limits
            after_ms = limits.gang_start_timeout_ms
            if allocation.is_held_back:
                after_ms = limits.prepare_timeout_ms
            self._members.note_late(allocation, self._suspect, after_ms)
        for node_id in dict.fromkeys(placement.node_id for placement in allocation.placements):
            self._end_unreachable(allocation, node_id)

    # Reports

    def on_prepared(self, allocation: Allocation, member: int, port: int) -> None:
        """Record that a member is prepared; send the commit again if it is stored already."""
        if allocation.rendezvous is not None:
            # A commit that is not stored yet is sent once it is.
            if (
                not self._stop_reason(allocation)
                and allocation.id in self._committed.committed_gangs
            ):
                self._commit_member(allocation, member)
            return
        if member not in self._members.not_ended(allocation):
            # Its node has lost the record of its end, and was ordered to start it again.
            self.stop_member(self._node_of(allocation, member), allocation.id, member)
            return
        first = self._members.on_prepared(allocation, member, port)
        if first is not None:
            self._post(Prepared(allocation.id, first, self._hosts(allocation)))

    def stop_member(self, node_id: str, allocation_id: str, member: int) -> None:
        """Stop a member that is prepared or runs for an attempt that has ended."""
        self._sessions.send(node_id, stop_order(allocation_id, member, "unknown"))

    def on_node_connected(self, node_id: str) -> None:
        """Forget what the node had prepared: its agent reports it again."""
        self._suspect.discard(node_id)
        self._members.on_disconnected(node_id)

    def on_node_disconnected(self, node_id: str) -> None:
        """Commit nothing on the node until it reconnects."""
        self._members.on_disconnected(node_id)

    def on_node_suspect(self, node_id: str) -> None:
        """End the members on a silent node that are being stopped and have not begun."""
        self._suspect.add(node_id)
        self.stop_waiting_for(node_id)

    def stop_waiting_for(self, node_id: str) -> None:
        """End the members on a node that cannot report their end."""
        cluster = self._loop.core.state.cluster
        resources = cluster.index.by_id.get(node_id)
        for allocation_id in (
            () if resources is None else list(cluster.by_node.get(resources.ordinal, {}))
        ):
            self._end_unreachable(cluster.running[allocation_id].running.allocation, node_id)

    def _end_unreachable(self, allocation: Allocation, node_id: str) -> None:
        why = self._stop_reason(allocation)
        is_dead = node_id in self._loop.core.state.fenced.get(allocation.id, ())
        never_runs = allocation.is_held_back and node_id in self._suspect
        if not why or not (is_dead or never_runs):
            return
        end = MemberResult(
            exit_code=None,
            signal=None,
            ran=not allocation.is_held_back,
            stopped_by=why,
            detail="its node is dead" if is_dead else "its node does not answer",
            at_ms=self._loop.now_ms(),
        )
        pending = self._members.not_ended(allocation)
        for placement in allocation.placements:
            if placement.node_id == node_id and placement.member in pending:
                self._on_ended(allocation, placement.member, end)

    def _node_of(self, allocation: Allocation, member: int) -> str:
        nodes = (p.node_id for p in allocation.placements if p.member == member)
        return next(nodes, "")

    def _commit_member(self, allocation: Allocation, member: int) -> None:
        for placement in allocation.placements:
            if placement.member == member:
                self._sessions.send(placement.node_id, commit_order(allocation, placement))

    def _stop_reason(self, allocation: Allocation) -> str:
        running = self._loop.core.state.running(allocation.id)
        return "" if running is None else running[2].stop_why

    def _hosts(self, allocation: Allocation) -> tuple[str, ...]:
        return tuple(self._sessions.address(placement.node_id) for placement in allocation.by_rank)

    def _hold_ms(self) -> int:
        wait_ms = self._loop.core.state.limits.prepare_timeout_ms
        return wait_ms + HOLD_LONGER_MS if wait_ms else LONGEST_HOLD_MS
