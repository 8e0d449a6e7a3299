"""Nodes on which stopping others is known to make no room, until something changes there.

A full cluster is searched for victims in nearly every cycle, mostly in vain and mostly on the same
nodes. What is remembered here was found by the search itself, so it changes no answer.
"""

from __future__ import annotations

from enum import Enum, auto

CacheKey = tuple[int, int, bool]
"""The id of the shape of a request, the static class of the job that wants a place for it, and
whether that job has a reservation that is due."""


class NegativeCache:
    """Bitmaps of nodes by search. Only for preemption by class.

    Whether a class may stop somebody is fixed while nothing is told of that one, except that nobody
    is stopped shortly before the end. So on a node where nothing changes victims only get fewer.
    """

    __slots__ = ("_changed", "_nodes")

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._nodes: dict[CacheKey, int] = {}
        self._changed = 0

    def of(self, key: CacheKey) -> int:
        """The nodes where there is nothing to be had."""
        self._forget_changed()
        return self._nodes.get(key, 0)

    def add(self, key: CacheKey, nodes: int) -> None:
        """These nodes were searched in vain, as they are now."""
        self._forget_changed()
        self._nodes[key] = self._nodes.get(key, 0) | nodes

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
        for key in nodes:
            nodes[key] &= unchanged


# --- How many searches for victims a cycle may still make, and which are known to be in vain.
#
# Jobs with grounds of their own have tries of their own, so that whoever waits before them with
# nobody to stop does not use them up.

Sort = tuple[bool, int, int]
"""A shape alone or all that need the same room, its id, and what is closed to it."""


class AttemptClass(Enum):
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


class AttemptBudget:
    """What one pass over the queue has tried so far."""

    def __init__(self, most: int) -> None:
        """At most so many tries in every lane."""
        self._most = most
        self._made = dict.fromkeys(AttemptClass, 0)
        self._in_vain: dict[Sort, int] = {}

    def are_left(self, lane: AttemptClass = AttemptClass.BATCH) -> bool:
        """Tell whether there may be another one."""
        return self._made[lane] < self._most

    def count(self, lane: AttemptClass) -> None:
        """One is made."""
        self._made[lane] += 1

    def is_in_vain(self, sort: Sort, static_class: int) -> bool:
        """Tell whether a job of that sort and of no lower class has found nobody to stop."""
        return static_class <= self._in_vain.get(sort, -1)

    def note_in_vain(self, sort: Sort, static_class: int) -> None:
        """A job of that sort and class has found nobody to stop."""
        self._in_vain[sort] = static_class
