"""Which nodes have partly used devices with how much left: one bitmap for every hundredth.

A row has the nodes with a usable device of just that rest, whatever their kind, and a slot knows
its rows (`steps`). A search walks the rows from the smallest rest that is enough. The rows follow
the slots that changed only when a search needs them.
"""

from __future__ import annotations

from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold, Slot
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI

STEPS = WHOLE_MILLI // SHARE_STEP_MILLI + 1
_BIT_OF_REST = tuple(1 << rest // SHARE_STEP_MILLI for rest in range(WHOLE_MILLI + 1))
"""The bit of a rest's row, by the rest: looked up for every device at every change."""


class Parts:
    """The rows, and in `steps` which of them are not empty, the smallest rest at the lowest bit."""

    __slots__ = ("_slots", "changed", "rows", "steps")

    def __init__(self, slots: list[Slot]) -> None:
        """Start without partly used devices; `slots` is the list of the index itself."""
        self._slots = slots
        self.changed: list[Slot] = []
        self.rows = [0] * STEPS
        self.steps = 0

    def find(self, shape: Shape, within: int | None, *, spread: bool = False) -> Hold | None:
        """The device with the smallest rest that is enough; spreading, with the largest one.

        The lowest ordinal wins a tie.
        """
        if self.changed:
            self.settle()
        nodes = shape.nodes
        if within is not None:
            nodes = within if nodes is None else nodes & within
        cpu = shape.cpu
        memory = shape.memory
        slots = self._slots
        least = shape.step
        steps = self.steps >> least
        while steps:
            bit = 1 << steps.bit_length() - 1 if spread else steps & -steps
            steps ^= bit
            step = least + bit.bit_length() - 1
            bits = self.rows[step]
            if nodes is not None:
                bits &= nodes
            while bits:
                slot = slots[-bits.bit_length()]
                if slot.free_cpu >= cpu and slot.free_memory >= memory:
                    hold = slot.choose_part(shape, step)
                    if hold is not None:
                        return hold
                bits ^= slot.bit
        return None

    def settle(self) -> None:
        """Let the rows follow every slot that changed."""
        for slot in self.changed:
            slot.in_rows = True
            self.follow(slot)
        self.changed.clear()

    def follow(self, slot: Slot) -> None:
        """Put a slot into the rows where it belongs now; into none if no bucket has it."""
        steps = 0
        if slot.bucket >= 0:
            usable = slot.usable
            for position, entry in slot.shared.items():
                if usable >> position & 1:
                    steps |= _BIT_OF_REST[entry[0]]
        changed = steps ^ slot.steps
        slot.steps = steps
        while changed:
            step = changed.bit_length() - 1
            changed ^= 1 << step
            bits = self.rows[step] ^ slot.bit
            self.rows[step] = bits
            if not bits:
                self.steps ^= 1 << step
            elif steps >> step & 1:
                self.steps |= 1 << step

    def widen(self, growth: int) -> None:
        """Bitmaps of nodes have so many more bits from now on."""
        self.rows = [bits << growth for bits in self.rows]
