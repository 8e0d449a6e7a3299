"""Try, then commit or undo: changes to the index that can be taken back to any mark."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.engine.state.node_index import Index
from gpu_scheduler.engine.state.node_resources import Hold


class Draft:
    """A log of takes and gives. `undo` restores the index exactly."""

    __slots__ = ("_log", "index")

    def __init__(self, index: Index) -> None:
        """Start with nothing tried."""
        self.index = index
        self._log: list[tuple[bool, Hold]] = []

    def take(self, hold: Hold) -> None:
        """Try holding something."""
        self.index.take(hold)
        self._log.append((True, hold))

    def give(self, hold: Hold) -> None:
        """Try letting something go."""
        self.index.give(hold)
        self._log.append((False, hold))

    def mark(self) -> int:
        """A point to which one can return."""
        return len(self._log)

    def undo(self, mark: int = 0) -> None:
        """Take back everything since the mark, last first."""
        log = self._log
        index = self.index
        while len(log) > mark:
            taken, hold = log.pop()
            if taken:
                index.give(hold)
            else:
                index.take(hold)

    def take_instead(self, mark: int, holds: Iterable[Hold]) -> None:
        """Try holding this in place of everything since the mark."""
        self.undo(mark)
        for hold in holds:
            self.take(hold)

    def commit(self) -> None:
        """Keep everything."""
        self._log.clear()
