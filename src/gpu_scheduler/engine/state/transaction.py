"""Try, then commit or undo: changes to the index that can be taken back to any mark."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant


class Transaction:
    """A log of takes and gives. `undo` restores the index exactly."""

    __slots__ = ("_log", "index")

    def __init__(self, index: NodeIndex) -> None:
        """Start with nothing tried."""
        self.index = index
        self._log: list[tuple[bool, Grant]] = []

    def take(self, grant: Grant) -> None:
        """Try holding something."""
        self.index.take(grant)
        self._log.append((True, grant))

    def give(self, grant: Grant) -> None:
        """Try letting something go."""
        self.index.give(grant)
        self._log.append((False, grant))

    def mark(self) -> int:
        """A point to which one can return."""
        return len(self._log)

    def undo(self, mark: int = 0) -> None:
        """Take back everything since the mark, last first."""
        log = self._log
        index = self.index
        while len(log) > mark:
            taken, grant = log.pop()
            if taken:
                index.give(grant)
            else:
                index.take(grant)

    def take_instead(self, mark: int, grants: Iterable[Grant]) -> None:
        """Try holding this in place of everything since the mark."""
        self.undo(mark)
        for grant in grants:
            self.take(grant)

    def commit(self) -> None:
        """Keep everything."""
        self._log.clear()
