"""How much of what runs must end before a gang fits: expected ends in, a time and a place out.

Everything is tried in the draft, which is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.slot import Hold

End = tuple[int, list[Hold]]
"""When something is expected to end, and what it holds until then."""


class Upcoming:
    """Expected ends in order, drawn only as far as somebody looks: often a few of thousands."""

    def __init__(self, ends: Iterator[End]) -> None:
        """Draw nothing yet."""
        self._rest = ends
        self.seen: list[End] = []

    def draw(self, count: int) -> int:
        """Have so many ends in `seen`, or all if there are fewer; returns how many."""
        self.seen += islice(self._rest, max(0, count - len(self.seen)))
        return min(count, len(self.seen))


def least_release(
    draft: Draft, ends: Upcoming, place: Callable[[], list[Hold] | None]
) -> tuple[int, list[Hold]] | None:
    """The first end after which `place` finds a place in the draft, and that place.

    Doubles what is released until there is one, then halves the last step. Between two tries the
    draft stands at `low`, where there is none yet.
    """
    start = mark = draft.mark()
    low = high = 0
    step = 1
    found: list[Hold] | None = None
    while found is None:
        low, mark = high, draft.mark()
        high = ends.draw(low + step)
        if high == low:
            draft.undo(start)
            return None
        step *= 2
        _release(draft, ends.seen[low:high])
        found = place()
    while high - low > 1:
        draft.undo(mark)
        middle = (low + high) // 2
        _release(draft, ends.seen[low:middle])
        holds = place()
        if holds is None:
            low, mark = middle, draft.mark()
        else:
            high, found = middle, holds
    draft.undo(start)
    return ends.seen[high - 1][0], found


def _release(draft: Draft, ends: list[End]) -> None:
    for _, holds in ends:
        for hold in holds:
            draft.give(hold)
