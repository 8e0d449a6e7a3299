"""Copies of the nodes on which a place is being cleared, and what is known of such nodes.

The copies have what leaves given back and what members get taken. What was found out about a node
for one member holds for others of the same shape, until something changes there.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.engine.index import Index
from gpu_scheduler.engine.picture import RunningEntry
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold, Slot

Victims = list[tuple[RunningEntry, str]]
"""Running jobs that must leave, each with the ground for it."""
Room = tuple[int, Victims]
"""What it costs to make room on a node, and who must leave."""


class Shadows:
    """Shadows by ordinal; `touched` are their nodes, as a bitmap."""

    def __init__(self, index: Index, shadow_of: Callable[[int], Slot]) -> None:
        """`shadow_of` makes a copy of a node as it will be before anything is tried."""
        self._index = index
        self._shadow_of = shadow_of
        self._slots: dict[int, Slot] = {}
        self._full: dict[int, int] = {}
        self._rooms: dict[int, dict[int, Room]] = {}
        self.touched = 0

    def at(self, ordinal: int) -> Slot:
        """The shadow of a node, which counts as touched from now on."""
        shadow = self._slots.get(ordinal)
        if shadow is None:
            shadow = self._slots[ordinal] = self._shadow_of(ordinal)
            self.touched |= shadow.bit
        return shadow

    def copy_of(self, ordinal: int) -> Slot:
        """The node as it is now, to try something on."""
        shadow = self._slots.get(ordinal)
        return self._shadow_of(ordinal) if shadow is None else shadow.copy()

    def take(self, hold: Hold) -> None:
        """A member gets this."""
        shadow = self.at(hold.slot.ordinal)
        self._index.take(hold.on(shadow))
        self._note_change(shadow.bit)

    def leave(self, victim: RunningEntry) -> None:
        """A running job leaves all its nodes."""
        for held in victim.holds:
            self._index.give(held.on(self.at(held.slot.ordinal)))
        self._note_change(victim.nodes)

    def full_for(self, shape: Shape) -> int:
        """Nodes that are known to have no room for the shape, whoever leaves."""
        return self._full.get(shape.id, 0)

    def note_full(self, shape: Shape, nodes: int) -> None:
        """There is no room for the shape on these nodes."""
        self._full[shape.id] = self.full_for(shape) | nodes

    def rooms_for(self, shape: Shape) -> dict[int, Room]:
        """Who must leave for the shape, by ordinal, as far as that is known; others are added."""
        return self._rooms.setdefault(shape.id, {})

    def _note_change(self, nodes: int) -> None:
        """Nothing is known of these nodes any more."""
        for shape_id in self._full:
            self._full[shape_id] &= ~nodes
        for known in self._rooms.values():
            for slot in self._index.slots_in(nodes):
                known.pop(slot.ordinal, None)
