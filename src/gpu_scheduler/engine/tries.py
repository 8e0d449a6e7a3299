"""How many searches for victims a cycle may still make, and which are known to be in vain.

Jobs with grounds of their own have tries of their own, so that whoever waits before them with
nobody to stop does not use them up.
"""

from __future__ import annotations

from enum import Enum, auto

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
