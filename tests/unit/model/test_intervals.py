"""Sets of task numbers: ranges are always sorted, disjoint and not adjacent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet

numbers = st.sets(st.integers(0, 40))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-99", "0-99"),
        ("7", "7"),
        ("1,3,5-9", "1,3,5-9"),
        ("0-20:4", "0,4,8,12,16,20"),
        ("5-9, 1 ,3", "1,3,5-9"),
        ("0-9:", "0-9"),
        ("0-3,4-6", "0-6"),
        ("0-5,2-9", "0-9"),
    ],
)
def test_array_ranges_are_parsed(text: str, expected: str) -> None:
    assert str(IntervalSet.parse(text)) == expected


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "1,,2", "0-9:x", "1-2-3"])
def test_invalid_range_is_rejected_with_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a number or a range; write for example 0-99"):
        IntervalSet.parse(text)


def test_step_of_zero_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="the step must be 1 or more, not 0"):
        IntervalSet.parse("0-9:0")


@pytest.mark.parametrize("text", ["9-0", "1,9-0", "9-0:2", "1,9-0:2"])
def test_reversed_range_is_rejected_with_correction(text: str) -> None:
    with pytest.raises(InvalidRequest, match="range 9-0 runs backwards; write 0-9"):
        IntervalSet.parse(text)


def test_set_counts_numbers_not_ranges() -> None:
    assert len(IntervalSet.parse("0-999999")) == 1_000_000
    assert not IntervalSet()
    assert IntervalSet.parse("4-6,9").first == 4


@given(numbers, st.integers(-1, 42))
def test_one_number_more_or_less_changes_nothing_else(chosen: set[int], number: int) -> None:
    interval_set = IntervalSet.of(chosen)
    assert interval_set.with_number(number) == IntervalSet.of(chosen | {number})
    assert interval_set.without(number) == IntervalSet.of(chosen - {number})


@given(numbers)
def test_set_holds_exactly_its_input(chosen: set[int]) -> None:
    interval_set = IntervalSet.of(chosen)
    assert list(interval_set) == sorted(chosen)
    assert len(interval_set) == len(chosen)
    assert bool(interval_set) == bool(chosen)
    assert [n for n in range(-1, 43) if n in interval_set] == sorted(chosen)


@given(numbers, numbers)
def test_union_and_difference_equal_those_of_sets(one: set[int], other: set[int]) -> None:
    first, second = IntervalSet.of(one), IntervalSet.of(other)
    assert first.union(second) == IntervalSet.of(one | other)
    assert first.minus(second) == IntervalSet.of(one - other)
    assert first.first_not_in(second) == min(one - other, default=None)


@given(numbers, st.integers(0, 40))
def test_one_number_is_added_or_removed(chosen: set[int], number: int) -> None:
    interval_set = IntervalSet.of(chosen)
    assert interval_set.with_number(number) == IntervalSet.of(chosen | {number})
    assert interval_set.without(number) == IntervalSet.of(chosen - {number})


@given(numbers.filter(bool))
def test_interval_set_text_round_trips(chosen: set[int]) -> None:
    interval_set = IntervalSet.of(chosen)
    assert IntervalSet.parse(str(interval_set)) == interval_set


def test_reversed_ranges_are_rejected_with_corrected_order() -> None:
    with pytest.raises(InvalidRequest, match="range 5-3 runs backwards; write 3-5"):
        IntervalSet.from_ranges([(1, 2), (5, 3)])
