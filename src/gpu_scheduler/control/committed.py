"""Which allocations the store has, kept along with its commits: agents ask for each of theirs."""

from __future__ import annotations

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.store.rows import RemovedAllocation, Write


class Committed:
    """The ids of all that is held, as of the last commit."""

    def __init__(self, loop: Loop) -> None:
        """Read them once, and listen."""
        self.ids = {allocation.id for allocation in loop.store.allocations()}
        loop.on_committed(self._note)

    def _note(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, Allocation):
                self.ids.add(write.id)
            elif isinstance(write, RemovedAllocation):
                self.ids.discard(write.id)
