"""Groups of alike jobs, as many as are worth remembering.

People name every run of a sweep differently, so there is no end to fine groups. The one that has
learnt nothing for the longest time is forgotten first; coarse groups learn all the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MAX_GROUPS = 50_000

Group = TypeVar("Group")


class Recent(Generic[Group]):
    """What was learnt, by group; `get` only looks."""

    def __init__(self, most: int = MAX_GROUPS) -> None:
        """Start empty."""
        self._groups: OrderedDict[Hashable, Group] = OrderedDict()
        self._most = most
        self.get = self._groups.get

    def __contains__(self, key: Hashable) -> bool:
        """Tell whether anything is known of a group."""
        return key in self._groups

    def __len__(self) -> int:
        """How many groups are known."""
        return len(self._groups)

    def learning(self, key: Hashable, new: Callable[[], Group]) -> Group:
        """A group that learns something now, made if nothing was known of it."""
        group = self._groups.get(key)
        if group is not None:
            self._groups.move_to_end(key)
            return group
        group = self._groups[key] = new()
        if len(self._groups) > self._most:
            self._groups.popitem(last=False)
        return group
