"""Sets of whole numbers kept as sorted, disjoint, inclusive ranges.

An array of a million tasks is one `IntervalSet` per state, not a million rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpu_scheduler.model.errors import InvalidRequest

MOST_RANGES = 10_000
"""The tasks of an array that users name are in at most this many ranges."""


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """A set of integers. Invariant: ranges are sorted, disjoint and not adjacent."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> IntervalSet:
        """Gather single numbers into ranges."""
        ordered = sorted(set(numbers))
        if not ordered:
            return cls()
        gaps = [pair for pair in pairwise(ordered) if pair[1] - pair[0] > 1]
        lows = (ordered[0], *(low for _, low in gaps))
        highs = (*(high for high, _ in gaps), ordered[-1])
        return cls(tuple(zip(lows, highs, strict=True)))

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> IntervalSet:
        """Gather inclusive ranges, in any order and overlapping or not."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if low > high:
                raise _backwards(low, high)
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    @classmethod
    def parse(cls, text: str) -> IntervalSet:
        """Read `0-99`, `1,3,5-9` or `0-20:4` (every fourth)."""
        ranges: list[tuple[int, int]] = []
        for part in text.split(","):
            span, _, step_text = part.strip().partition(":")
            low_text, dash, high_text = span.partition("-")
            numbers = (low_text, high_text if dash else low_text, step_text or "1")
            if not all(number.isdecimal() for number in numbers):
                raise InvalidRequest(
                    f"array '{text}': '{part.strip()}' is not a number or a range; "
                    "write for example 0-99, 1,3,5-9 or 0-20:4"
                )
            low, high, step = map(int, numbers)
            if step < 1:
                raise InvalidRequest(f"array '{text}': the step must be 1 or more, not {step}")
            if low > high:
                raise _backwards(low, high)
            if step == 1:
                ranges.append((low, high))
            else:
                ranges.extend((number, number) for number in range(low, high + 1, step))
        return cls.from_ranges(ranges)

    def __len__(self) -> int:
        """Count the numbers, not the ranges."""
        return sum(high - low + 1 for low, high in self.ranges)

    def __bool__(self) -> bool:
        """Tell whether any number is in the set."""
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in rising order."""
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __contains__(self, number: int) -> bool:
        """Tell whether the number is in the set."""
        place = bisect_right(self.ranges, (number, number + 1))
        # The only range that can hold the number starts at or before it.
        for low, high in self.ranges[max(0, place - 1) : place + 1]:
            if low <= number <= high:
                return True
        return False

    def __str__(self) -> str:
        """Write the set as people write it: 0-3,7."""
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)

    @property
    def first(self) -> int:
        """The smallest number."""
        return self.ranges[0][0]

    def union(self, other: IntervalSet) -> IntervalSet:
        """Everything in either set."""
        return IntervalSet.from_ranges(self.ranges + other.ranges)

    def minus(self, other: IntervalSet) -> IntervalSet:
        """Everything here that is not in the other set; linear in the ranges of both."""
        cuts, place = other.ranges, 0
        left: list[tuple[int, int]] = []
        for low, high in self.ranges:
            start = low
            while place < len(cuts) and cuts[place][0] <= high:
                cut_low, cut_high = cuts[place]
                if cut_low > start:
                    left.append((start, cut_low - 1))
                start = max(start, cut_high + 1)
                if cut_high > high:
                    break  # it may reach into the next range
                place += 1
            if start <= high:
                left.append((start, high))
        return IntervalSet(tuple(left))

    def first_not_in(self, other: IntervalSet) -> int | None:
        """The smallest number here that is not in the other set; quick, however many ranges."""
        for low, high in self.ranges:
            place = bisect_right(other.ranges, low, key=lambda span: span[0])
            last = other.ranges[place - 1][1] if place else low - 1
            if last < high:
                return max(low, last + 1)
        return None

    def without(self, number: int) -> IntervalSet:
        """Everything but one number."""
        place = bisect_right(self.ranges, number, key=lambda span: span[0]) - 1
        if place < 0 or self.ranges[place][1] < number:
            return self
        rest = IntervalSet((self.ranges[place],)).minus(IntervalSet(((number, number),)))
        return IntervalSet((*self.ranges[:place], *rest.ranges, *self.ranges[place + 1 :]))

    def with_number(self, number: int) -> IntervalSet:
        """Everything and one number more."""
        place = bisect_right(self.ranges, number, key=lambda span: span[0])
        begin, end = max(0, place - 1), place + 1
        near = IntervalSet.from_ranges((*self.ranges[begin:end], (number, number)))
        return IntervalSet((*self.ranges[:begin], *near.ranges, *self.ranges[end:]))


def _backwards(low: int, high: int) -> InvalidRequest:
    return InvalidRequest(f"range {low}-{high} runs backwards; write {high}-{low}")
