"""What will be free on one node over time, if everything ends when it is expected to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gpu_scheduler.engine.placement.gpu_choice import lowest_bits
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.transaction import Transaction

if TYPE_CHECKING:
    from gpu_scheduler.engine.reservation.advance_reservations import ExclusionRule

NEVER_FIRST = 1 << 62


class Booking(NamedTuple):
    """A part of a reservation on one node: whose, what, from when until when, and its rank."""

    number: int
    grant: Grant
    at_ms: int
    end_ms: int
    static_class: int
    value: int


class NodeTimeline:
    """Steps in time, each with a copy of the node. Only bookings make anything scarcer.

    `drops` are the moments when a booking begins. Between them room only grows, so whether
    something fits for a while is decided at its start and at the drops inside it. A rule says on
    which devices a job must not start at a time, because a person has reserved them for others.
    """

    __slots__ = (
        "_fits",
        "_free_now",
        "_index",
        "drops",
        "first_value",
        "states",
        "times",
        "top_class",
    )

    def __init__(
        self, index: NodeIndex, resources: NodeResources, now_ms: int, ends: list[tuple[int, Grant]]
    ) -> None:
        """Roll the node forward through the expected ends of its allocations."""
        self._index = index
        self._fits: dict[tuple[int, int], bool] = {}
        self._free_now: dict[int, NodeResources] = {}
        state = resources.copy()
        self.times = [now_ms]
        self.states = [state]
        self.drops: list[int] = []
        self.top_class = -1
        self.first_value = NEVER_FIRST
        for end_ms, grant in sorted(ends, key=_by_end):
            at_ms = max(end_ms, now_ms + 1)
            if at_ms != self.times[-1]:
                state = state.copy()
                self.times.append(at_ms)
                self.states.append(state)
            index.give(grant.on(state))

    def fits(self, shape: RequestShape, end_ms: int) -> bool:
        """Tell whether a request fits from now until a moment, next to everything that is booked.

        That depends only on which bookings begin before: many jobs of a shape share an answer, and
        all shapes share what is free.
        """
        begun = bisect_left(self.drops, end_ms)
        key = (shape.id, begun)
        answer = self._fits.get(key)
        if answer is None:
            free = self._free_now.get(begun)
            if free is None:
                free = self._free_now[begun] = self._common(self.times[0], end_ms)
            answer = self._fits[key] = free.choose_any(shape) is not None
        return answer

    def choose(
        self, shape: RequestShape, start_ms: int, end_ms: int, rule: ExclusionRule | None = None
    ) -> Grant | None:
        """Devices that are free from start to end, next to everything that is booked."""
        common = self._common(start_ms, end_ms)
        if rule is not None:
            common = rule.narrowed(common, start_ms)
        return common.choose_any(shape)

    def choose_late(
        self, shape: RequestShape, start_ms: int, end_ms: int, rule: ExclusionRule | None = None
    ) -> Grant | None:
        """The same, but rather devices that are in use now, so that free ones stay of use."""
        common = self._common(start_ms, end_ms)
        if rule is not None:
            common = rule.narrowed(common, start_ms)
        later = common.copy()
        now_free = self.states[0].free_mask
        wanted = shape.request.gpu_count
        spare = wanted - (common.free_mask & ~now_free).bit_count() if shape.whole_only else 0
        kept = lowest_bits(common.free_mask & now_free, max(0, spare))
        later.busy |= now_free & ~kept
        return later.choose_any(shape) or common.choose_any(shape)

    def has_room(self, grants: list[Grant], start_ms: int, end_ms: int) -> bool:
        """Tell whether certain devices on this node are free for a while, all of them together."""
        moments = [start_ms, *(drop for drop in self.drops if start_ms < drop < end_ms)]
        for moment in moments:
            state = self.at(moment)
            for grant in grants:
                if grant.resources.ordinal == state.ordinal:
                    held = grant.on(state)
                    if not state.can_take(held):
                        return False
                    self._index.take(held)
        return True

    def earliest(
        self, shape: RequestShape, duration_ms: int, from_ms: int, rule: ExclusionRule | None = None
    ) -> tuple[int, Grant] | None:
        """The first time from which the request fits for its duration."""
        place = bisect_right(self.times, from_ms)
        times = [from_ms, *self.times[place:]]
        if rule is not None:
            opened = [at_ms for at_ms in rule.ends_on(self.states[0].ordinal) if at_ms > from_ms]
            times = sorted({*times, *opened})
        for at_ms in times:
            if self._state_at(at_ms).choose_any(shape) is not None:
                grant = self.choose(shape, at_ms, at_ms + duration_ms, rule)
                if grant is not None:
                    return at_ms, grant
        return None

    def book(self, booking: Booking) -> None:
        """Keep devices for a reservation of a job of its class and place in the order."""
        self.occupy(booking.grant, booking.at_ms, booking.end_ms)
        insort(self.drops, booking.at_ms)
        self.top_class = max(self.top_class, booking.static_class)
        self.first_value = min(self.first_value, booking.value)

    def occupy(self, grant: Grant, start_ms: int, end_ms: int) -> None:
        """Take certain devices for a while, wherever they are free."""
        self._fits.clear()
        self._free_now.clear()
        self._split(start_ms)
        self._split(end_ms)
        first = bisect_left(self.times, start_ms)
        last = bisect_left(self.times, end_ms)
        for state in self.states[first:last]:
            held = grant.on(state)
            if state.can_take(held):
                self._index.take(held)

    def at(self, at_ms: int) -> NodeResources:
        """A copy of the node as it will be at a moment."""
        return self._state_at(at_ms).copy()

    def _common(self, start_ms: int, end_ms: int) -> NodeResources:
        """The free resources at the start and at every drop until the end."""
        common = self._state_at(start_ms)
        for drop in self.drops[bisect_right(self.drops, start_ms) :]:
            if drop >= end_ms:
                break
            common = _narrower(common, self._state_at(drop))
        return common

    def _state_at(self, at_ms: int) -> NodeResources:
        return self.states[max(0, bisect_right(self.times, at_ms) - 1)]

    def _split(self, at_ms: int) -> None:
        place = bisect_left(self.times, at_ms)
        if place == 0 or (place < len(self.times) and self.times[place] == at_ms):
            return
        self.times.insert(place, at_ms)
        self.states.insert(place, self.states[place - 1].copy())


def _by_end(item: tuple[int, Grant]) -> int:
    return item[0]


def _narrower(one: NodeResources, other: NodeResources) -> NodeResources:
    """A copy on which only that is free which is free on both."""
    both = one.copy()
    both.busy |= other.busy
    both.free_cpu = min(one.free_cpu, other.free_cpu)
    both.free_memory = min(one.free_memory, other.free_memory)
    for position in other.shared:
        left, memory_mb, holders = other.shared[position]
        if position in one.shared:
            mine = one.shared[position]
            both.shared[position] = [min(left, mine[0]), min(memory_mb, mine[1]), holders]
        elif not one.busy >> position & 1:
            both.shared[position] = [left, memory_mb, holders]
    for position in one.shared:
        if position not in other.shared and other.busy >> position & 1:
            del both.shared[position]
    for key, left in other.mig.items():
        both.mig[key] = min(left, both.mig[key])
    return both


End = tuple[int, list[Grant]]
"""When something is expected to end, and what it holds until then."""


class Upcoming:
    """Expected ends in order, read lazily: often a few of thousands are enough."""

    def __init__(self, ends: Iterator[End]) -> None:
        """Draw nothing yet."""
        self._rest = ends
        self.seen: list[End] = []

    def draw(self, count: int) -> int:
        """Have so many ends in `seen`, or all if there are fewer; returns how many."""
        self.seen += islice(self._rest, max(0, count - len(self.seen)))
        return min(count, len(self.seen))


def least_release(
    transaction: Transaction, ends: Upcoming, place: Callable[[], list[Grant] | None]
) -> tuple[int, list[Grant]] | None:
    """The first end after which `place` finds a place for a gang, and that place.

    Doubles what is released until there is one, then halves the last step. Between two tries the
    transaction stands at `low`, where there is none yet. It is left unchanged.
    """
    start = mark = transaction.mark()
    low = high = 0
    step = 1
    found: list[Grant] | None = None
    while found is None:
        low, mark = high, transaction.mark()
        high = ends.draw(low + step)
        if high == low:
            transaction.undo(start)
            return None
        step *= 2
        _release(transaction, ends.seen[low:high])
        found = place()
    while high - low > 1:
        transaction.undo(mark)
        middle = (low + high) // 2
        _release(transaction, ends.seen[low:middle])
        grants = place()
        if grants is None:
            low, mark = middle, transaction.mark()
        else:
            high, found = middle, grants
    transaction.undo(start)
    return ends.seen[high - 1][0], found


def _release(transaction: Transaction, ends: list[End]) -> None:
    for _, grants in ends:
        for grant in grants:
            transaction.give(grant)
