"""Compare the control state with what a reconnected node reports that it holds.

Reads only; returns what to do about the differences. An attempt without a record on its node either
never started there (the start is ordered again, which is safe) or its record is lost (its end is
unknown, and is not guessed). A member of a committed gang had been prepared, so its record existed.
A stop is ordered even without a record: the start order may still be on its way, and the node then
ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpu_scheduler.control.effects import StartOrder, StopOrder
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import Removed, Write

Held = tuple[str, int]
"""Allocation id and member."""


@dataclass(slots=True)
class Repairs:
    """What to do. Members whose records are `gone` have ended in an unknown way.

    `unknown` members run on the node, but not in the control state: stop and remove them.
    """

    starts: list[StartOrder] = field(default_factory=list)
    stops: list[StopOrder] = field(default_factory=list)
    gone: list[Held] = field(default_factory=list)
    unknown: list[Held] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Tell whether anything differs."""
        return bool(self.starts or self.stops or self.gone or self.unknown)


def reconcile(state: ControlState, node_id: str, held: set[Held], committed: set[str]) -> Repairs:
    """Compare one node. Allocations that are not committed yet are skipped."""
    repairs = Repairs()
    resources = state.cluster.index.by_id.get(node_id)
    expected = {} if resources is None else state.cluster.by_node.get(resources.ordinal, {})
    for allocation_id in expected:
        if allocation_id in committed:
            _compare(state, node_id, allocation_id, held, repairs)
    repairs.unknown = sorted(
        item for item in held if item[0] not in expected and item[0] not in committed
    )
    return repairs


def _compare(
    state: ControlState, node_id: str, allocation_id: str, held: set[Held], repairs: Repairs
) -> None:
    found = state.running(allocation_id)
    if found is None:
        return
    record, _, task = found
    allocation = state.cluster.running[allocation_id].running.allocation
    members = [p.member for p in allocation.placements if p.node_id == node_id]
    missing = [member for member in members if (allocation_id, member) not in held]
    if missing and (task.state is JobState.RUNNING or allocation.rendezvous is not None):
        repairs.gone += [(allocation_id, member) for member in missing]
    elif task.stop_why:
        repairs.stops.append(StopOrder(allocation_id, task.stop_why))
    elif missing:
        repairs.starts.append(StartOrder(allocation, record.job))


class AllocationView:
    """The ids of all stored allocations; `committed_gangs` are those whose gang may run.

    `ended` is called with the id of each allocation that was removed from the store.
    """

    def __init__(self, loop: Loop, ended: Callable[[str], None] = lambda _: None) -> None:
        """Read the store once, then follow the commits."""
        self.ids: set[str] = set()
        self.committed_gangs: set[str] = set()
        self._loop = loop
        self._ended = ended
        self._add(loop.store.allocations())
        loop.on_committed(self._note)
        loop.on_reload(self._reload)

    def _reload(self) -> None:
        """After a failed commit the core was read again from the store, so take its allocations."""
        self.ids.clear()
        self.committed_gangs.clear()
        running = self._loop.core.state.cluster.running.values()
        self._add(entry.running.allocation for entry in running)

    def _add(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.ids.add(allocation.id)
            if allocation.rendezvous is not None:
                self.committed_gangs.add(allocation.id)

    def _note(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, Allocation):
                self._add((write,))
            elif isinstance(write, Removed) and write.kind is Allocation:
                self.ids.discard(write.id)
                self.committed_gangs.discard(write.id)
                self._ended(write.id)
