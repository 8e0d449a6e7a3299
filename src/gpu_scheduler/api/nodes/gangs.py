"""Orders and facts of gangs over several nodes: prepare, commit, and giving up what never ran.

The core decides and the store keeps; this only tells the nodes, and takes down what they say. All
of it can be said again: an agent that comes back says what it has prepared, and hears the commit if
there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpu_scheduler.control.effects import CommitOrder
from gpu_scheduler.control.gangs import GangStatus, MemberResult
from gpu_scheduler.control.jobs.lifecycle import NOT_BEGUN
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Prepared
from gpu_scheduler.control.nodes.reconcile import AllocationView
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import commit_order, rendezvous_of, stop_order

HOLD_LONGER_MS = 15_000
"""So much longer than the server waits for all members do prepared ones wait for the server: only
where it is out of reach do they give up by themselves."""
LONGEST_HOLD_MS = 24 * 3_600_000
OverTold = Callable[[Allocation, int, MemberResult], None]


class Nodes(Protocol):
    """The agents that are connected, as far as gangs need them."""

    def send(self, node_id: str, item: pb.Order) -> bool:
        """Send an order; False if nobody is there."""
        ...

    def address(self, node_id: str) -> str:
        """Where other nodes reach this one."""
        ...


class GangCoordinator:
    """One for all gangs. `over` hears of members whose end needs no word of their node."""

    def __init__(
        self,
        loop: Loop,
        members: GangStatus,
        nodes: Nodes,
        tell: Callable[[Prepared], object],
        over: OverTold,
        committed: AllocationView,
    ) -> None:
        """Start with all nodes in reach."""
        self._loop = loop
        self._members = members
        self._nodes = nodes
        self._tell = tell
        self._over = over
        self._committed = committed
        self._silent: set[str] = set()

    # --- orders

    def complete_start(self, order: pb.Order, allocation: Allocation, placement: Placement) -> None:
        """Say in a start order of a gang where the others are, and that it must wait for them."""
        start = order.start
        if not start.HasField("rendezvous"):
            return
        start.rendezvous.CopyFrom(rendezvous_of(allocation, placement, self._hosts(allocation)))
        if allocation.spans_nodes:
            start.prepare_only = True
            start.prepare_ms = self._hold_ms()

    def commit(self, order: CommitOrder) -> None:
        """The commit is stored: everybody may run."""
        for placement in order.allocation.placements:
            self._nodes.send(placement.node_id, commit_order(order.allocation, placement))

    def stopping(self, allocation: Allocation, why: str) -> None:
        """An attempt is being stopped: note why it was late, and do not wait for the dead."""
        if not allocation.spans_nodes:
            return
        if why == NOT_BEGUN:
            limits = self._loop.core.state.limits
            after_ms = limits.gang_start_timeout_ms
            if allocation.is_held_back:
                after_ms = limits.prepare_timeout_ms
            self._members.note_late(allocation, self._silent, after_ms)
        for node_id in dict.fromkeys(placement.node_id for placement in allocation.placements):
            self._let_go(allocation, node_id)

    # --- facts

    def hear_prepared(self, allocation: Allocation, member: int, port: int) -> None:
        """A member is prepared. If the commit is stored, it has not heard of it."""
        if allocation.rendezvous is not None:
            # What is only about to be committed is ordered when it is.
            if not self._stop_why(allocation) and allocation.id in self._committed.committed_gangs:
                self._commit_member(allocation, member)
            return
        if member not in self._members.not_ended(allocation):
            # Its node has lost the record of its end, and was told to start it once more.
            self.refuse(self._node_of(allocation, member), allocation.id, member)
            return
        first = self._members.on_prepared(allocation, member, port)
        if first is not None:
            self._tell(Prepared(allocation.id, first, self._hosts(allocation)))

    def refuse(self, node_id: str, allocation_id: str, member: int) -> None:
        """What is prepared or runs for an attempt that is over is wanted no more."""
        self._nodes.send(node_id, stop_order(allocation_id, member, "unknown"))

    def node_back(self, node_id: str) -> None:
        """Its agent speaks again, and says anew what it has prepared."""
        self._silent.discard(node_id)
        self._members.on_disconnected(node_id)

    def node_away(self, node_id: str) -> None:
        """Its stream is broken: nothing is committed until it is back."""
        self._members.on_disconnected(node_id)

    def node_silent(self, node_id: str) -> None:
        """Nothing is heard of a node any more."""
        self._silent.add(node_id)
        self.node_gone(node_id)

    def node_gone(self, node_id: str) -> None:
        """Whatever is being stopped does not wait for a node that cannot or need not answer."""
        cluster = self._loop.core.state.cluster
        resources = cluster.index.by_id.get(node_id)
        for allocation_id in (
            () if resources is None else list(cluster.by_node.get(resources.ordinal, {}))
        ):
            self._let_go(cluster.running[allocation_id].running.allocation, node_id)

    def _let_go(self, allocation: Allocation, node_id: str) -> None:
        why = self._stop_why(allocation)
        is_dead = node_id in self._loop.core.state.fenced.get(allocation.id, ())
        never_runs = allocation.is_held_back and node_id in self._silent
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
                self._over(allocation, placement.member, end)

    def _node_of(self, allocation: Allocation, member: int) -> str:
        found = (p.node_id for p in allocation.placements if p.member == member)
        return next(found, "")

    def _commit_member(self, allocation: Allocation, member: int) -> None:
        for placement in allocation.placements:
            if placement.member == member:
                self._nodes.send(placement.node_id, commit_order(allocation, placement))

    def _stop_why(self, allocation: Allocation) -> str:
        found = self._loop.core.state.running(allocation.id)
        return "" if found is None else found[2].stop_why

    def _hosts(self, allocation: Allocation) -> tuple[str, ...]:
        return tuple(self._nodes.address(placement.node_id) for placement in allocation.by_rank)

    def _hold_ms(self) -> int:
        wait_ms = self._loop.core.state.limits.prepare_timeout_ms
        return wait_ms + HOLD_LONGER_MS if wait_ms else LONGEST_HOLD_MS
