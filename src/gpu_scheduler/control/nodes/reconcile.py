"""What the core believes, and what a node says that it holds: where they differ, what is to do.

Reads only. Work that a node has no record of either never began there (it is ordered again, which
is safe), or its record is gone (its end can never be known, and is not guessed). A member of a gang
that was committed had been prepared, so that its record must have been there. What is to stop is
ordered to stop also where there is no record: an order to start it may still be on its way, and
the node then never follows that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpu_scheduler.control.effects import StartOrder, StopOrder
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import RemovedAllocation, Write

Held = tuple[str, int]
"""Allocation id and member."""


@dataclass(slots=True)
class Repairs:
    """What is to do. Members whose records are `gone` have ended, nobody knows how.

    `unknown` work runs without the core knowing of it; it is to be stopped and forgotten.
    """

    starts: list[StartOrder] = field(default_factory=list)
    stops: list[StopOrder] = field(default_factory=list)
    gone: list[Held] = field(default_factory=list)
    unknown: list[Held] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Tell whether anything differs."""
        return bool(self.starts or self.stops or self.gone or self.unknown)


def reconcile(state: ControlState, node_id: str, held: set[Held], committed: set[str]) -> Repairs:
    """Compare, for one node.

    What has changed since the last commit is left alone: its own orders follow with its commit.
    """
    repairs = Repairs()
    resources = state.cluster.index.by_id.get(node_id)
    believed = {} if resources is None else state.cluster.by_node.get(resources.ordinal, {})
    for allocation_id in believed:
        if allocation_id in committed:
            _compare(state, node_id, allocation_id, held, repairs)
    repairs.unknown = sorted(
        item for item in held if item[0] not in believed and item[0] not in committed
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


# --- Which allocations the store has, kept along with its commits: agents ask for each of theirs.


class AllocationView:
    """The ids of all that is held, as of the last commit; `met` are gangs that may run.

    Whoever keeps something of attempts hears with `ended` that it can be forgotten.
    """

    def __init__(self, loop: Loop, ended: Callable[[str], None] = lambda _: None) -> None:
        """Read them once, and listen."""
        self.ids: set[str] = set()
        self.met: set[str] = set()
        self._loop = loop
        self._ended = ended
        self._add(loop.store.allocations())
        loop.on_committed(self._note)
        loop.on_reload(self._reload)

    def _reload(self) -> None:
        """A commit that failed may have been kept: just now the core is what the store has."""
        self.ids.clear()
        self.met.clear()
        running = self._loop.core.state.cluster.running.values()
        self._add(entry.running.allocation for entry in running)

    def _add(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.ids.add(allocation.id)
            if allocation.rendezvous is not None:
                self.met.add(allocation.id)

    def _note(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, Allocation):
                self._add((write,))
            elif isinstance(write, RemovedAllocation):
                self.ids.discard(write.id)
                self.met.discard(write.id)
                self._ended(write.id)
