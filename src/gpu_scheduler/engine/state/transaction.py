"""Try, then commit or undo: an undo log of changes to the node index."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.errors import InternalError


class Transaction:
    """An undo log of takes and gives. `undo` restores the index exactly.

    After an error within a take, a give or an undo the index is unknown: then `undo` raises.
    """

    __slots__ = ("_log", "index")

    def __init__(self, index: NodeIndex) -> None:
        """Start with nothing tried."""
        self.index = index
        self._log: list[tuple[bool, Grant] | None] = []

    def take(self, grant: Grant) -> None:
        """Take a grant."""
        self._log.append(None)
        self.index.take(grant)
        self._log[-1] = (True, grant)

    def give(self, grant: Grant) -> None:
        """Give a grant back."""
        self._log.append(None)
        self.index.give(grant)
        self._log[-1] = (False, grant)

    def mark(self) -> int:
        """A savepoint for `undo`."""
        return len(self._log)

    def undo(self, mark: int = 0) -> None:
        """Undo everything since the mark, last first."""
        log = self._log
        index = self.index
        while len(log) > mark:
            change = log[-1]
            if change is None:
                raise InternalError("a change of the node index failed half done")
            log[-1] = None
            taken, grant = change
            if taken:
                index.give(grant)
            else:
                index.take(grant)
            log.pop()

    def take_instead(self, mark: int, grants: Iterable[Grant]) -> None:
        """Undo everything since the mark and take these grants instead."""
        self.undo(mark)
        for grant in grants:
            self.take(grant)

    def commit(self) -> None:
        """Keep everything."""
        self._log.clear()
