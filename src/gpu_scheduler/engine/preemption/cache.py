"""Nodes on which stopping others is known to make no room, until something changes there.

A full cluster is searched for victims in nearly every cycle, mostly in vain and mostly on the same
nodes. What is remembered here was found by the search itself, so it changes no answer.
"""

from __future__ import annotations

from enum import Enum, auto

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


# --- How many searches for victims a cycle may still make, and which are known to be in vain.
#
# Jobs with grounds of their own have tries of their own, so that whoever waits before them with
# nobody to stop does not use them up.

Sort = tuple[bool, int, int]
"""A shape alone or all that need the same room, its id, and what is closed to it."""


class Lane(Enum):
    """Jobs whose tries are counted together."""

    BATCH = auto()
    INTERACTIVE = auto()
    OWN_WORK = auto()
    """Interactive work at a limit."""
    ONLINE = auto()
    """Online work within the part that is sure for it."""
    OWN_LENT = auto()
    """The same at a limit."""
    SURE = auto()
    """Work within what its tenant is sure of, which may have been lent."""


class Tries:
    """What one pass over the queue has tried so far."""

    def __init__(self, most: int) -> None:
        """At most so many tries in every lane."""
        self._most = most
        self._made = dict.fromkeys(Lane, 0)
        self._in_vain: dict[Sort, int] = {}

    def are_left(self, lane: Lane = Lane.BATCH) -> bool:
        """Tell whether there may be another one."""
        return self._made[lane] < self._most

    def count(self, lane: Lane) -> None:
        """One is made."""
        self._made[lane] += 1

    def is_in_vain(self, sort: Sort, static_class: int) -> bool:
        """Tell whether a job of that sort and of no lower class has found nobody to stop."""
        return static_class <= self._in_vain.get(sort, -1)

    def note_in_vain(self, sort: Sort, static_class: int) -> None:
        """A job of that sort and class has found nobody to stop."""
        self._in_vain[sort] = static_class
