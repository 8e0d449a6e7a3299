"""Which allocations the store has, kept along with its commits: agents ask for each of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.store.rows import RemovedAllocation, Write


class Committed:
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
        running = self._loop.core.book.picture.running.values()
        self._add(entry.running.allocation for entry in running)

    def _add(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.ids.add(allocation.id)
            if allocation.meeting is not None:
                self.met.add(allocation.id)

    def _note(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, Allocation):
                self._add((write,))
            elif isinstance(write, RemovedAllocation):
                self.ids.discard(write.id)
                self.met.discard(write.id)
                self._ended(write.id)
