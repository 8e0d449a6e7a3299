"""Nodes on which stopping others is known to make no room, until something changes there.

A full cluster is searched for victims in nearly every cycle, mostly in vain and mostly on the same
nodes. What is remembered here was found by the search itself, so it changes no answer.
"""

from __future__ import annotations

Search = tuple[int, int, bool]
"""The id of the shape of a request, the static class of the job that wants a place for it, and
whether that job has a reservation that is due."""


class BarrenNodes:
    """Bitmaps of nodes by search. Only for preemption by class.

    Whether a class may stop somebody is fixed while nothing is told of that one, except that nobody
    is stopped shortly before the end. So on a node where nothing changes victims only get fewer.
    """

    __slots__ = ("_changed", "_nodes")

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._nodes: dict[Search, int] = {}
        self._changed = 0

    def of(self, search: Search) -> int:
        """The nodes where there is nothing to be had."""
        self._forget_changed()
        return self._nodes.get(search, 0)

    def add(self, search: Search, nodes: int) -> None:
        """These nodes were searched in vain, as they are now."""
        self._forget_changed()
        self._nodes[search] = self._nodes.get(search, 0) | nodes

    def note_change(self, nodes: int) -> None:
        """Something has started, ended or changed on these nodes."""
        self._changed |= nodes

    def _forget_changed(self) -> None:
        """Done only when somebody asks, as there are more changes than searches."""
        if not self._changed:
            return
        unchanged = ~self._changed
        self._changed = 0
        nodes = self._nodes
        for search in nodes:
            nodes[search] &= unchanged
