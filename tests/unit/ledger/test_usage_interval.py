"""Usage intervals can be split anywhere, and the pieces sum to the whole."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.units import Period
from gpu_scheduler.ledger.usage import UsageInterval, interval_of
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.plan import Allocation, DeviceShare, Placement
from tests.unit.ledger.builders import HOUR, NOV_15_2025, an_interval, intervals


@given(intervals(), st.sampled_from(Period))
def test_pieces_join_without_gap_or_overlap(interval: UsageInterval, period: Period) -> None:
    pieces = list(interval.pieces(period))
    assert pieces[0].start_ms == interval.start_ms
    assert pieces[-1].end_ms == interval.end_ms
    for earlier, later in pairwise(pieces):
        assert earlier.end_ms == later.start_ms == period.start_of(later.start_ms)
    for piece in pieces:
        assert piece.end_ms <= period.next_after(piece.start_ms)
    assert sum(piece.gpu_milli_ms for piece in pieces) == interval.gpu_milli_ms
    assert sum(piece.lost_gpu_milli_ms for piece in pieces) == interval.lost_gpu_milli_ms
    assert [piece.outcome for piece in pieces if piece.outcome] == [interval.outcome]


def test_end_of_attempt_stays_with_later_piece() -> None:
    interval = an_interval(outcome=JobState.PREEMPTED, lost_ms=500)
    earlier, later = interval.split_at(NOV_15_2025 + 10)
    assert (earlier.duration_ms, earlier.outcome, earlier.lost_ms) == (10, None, 0)
    assert (later.duration_ms, later.outcome, later.lost_ms) == (
        HOUR - 10,
        JobState.PREEMPTED,
        500,
    )


def test_interval_ending_on_boundary_is_one_piece() -> None:
    interval = an_interval(start_ms=NOV_15_2025 - HOUR, end_ms=NOV_15_2025)
    assert list(interval.pieces(Period.DAY)) == [interval]


def test_only_part_between_two_times_is_taken() -> None:
    interval = an_interval()
    middle = interval.within(NOV_15_2025 + 10, NOV_15_2025 + 30)
    assert middle is not None
    assert (middle.duration_ms, middle.outcome) == (20, None)
    assert interval.within(0, 2 * NOV_15_2025) == interval
    assert interval.within(0, NOV_15_2025) is None
    assert interval.within(NOV_15_2025 + HOUR, 2 * NOV_15_2025) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"end_ms": 0},
        {"cpu_milli": -1},
        {"lost_ms": -1},
        {"gpu_models": ()},
        {"gpu_models": (("B", 400), ("A", 600))},
        {"gpu_models": (("A", 400), ("A", 600))},
        {"gpu_models": (("A", -400), ("B", 1400))},
        {"outcome": JobState.RUNNING},
    ],
)
def test_impossible_interval_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="allocation a1"):
        an_interval(**changes)


def a_gang_allocation() -> Allocation:
    """Two A100 on one node, a half H100 on another."""
    whole = tuple(DeviceShare(index, 1000, 40_960) for index in (0, 1))
    half = (DeviceShare(0, 500, 10_000),)
    return Allocation(
        id="a1",
        job_id="j1",
        task=3,
        attempt=2,
        placements=(
            Placement(0, "n1", whole, 4000, 1024),
            Placement(1, "n2", half, 2000, 512),
        ),
        start_ms=100,
    )


def test_allocation_becomes_interval_by_model() -> None:
    job = Job(id="j1", number=1, submit_ms=0, tenant="vision", user="ada")
    interval = interval_of(
        job,
        a_gang_allocation(),
        end_ms=150,
        model_of=lambda node_id, _: "A100" if node_id == "n1" else "H100",
        outcome=JobState.COMPLETED,
    )
    assert interval == UsageInterval(
        allocation_id="a1",
        job_id="j1",
        task=3,
        tenant="vision",
        user="ada",
        attempt=2,
        start_ms=100,
        end_ms=150,
        gpu_milli=2500,
        gpu_memory_mb=91_920,
        cpu_milli=6000,
        memory_mb=1536,
        gpu_models=(("A100", 2000), ("H100", 500)),
        outcome=JobState.COMPLETED,
    )


def test_clock_step_back_gives_empty_interval() -> None:
    job = Job(id="j1", number=1, submit_ms=0)
    interval = interval_of(job, a_gang_allocation(), end_ms=50, model_of=lambda *_: "GPU")
    assert (interval.start_ms, interval.end_ms, interval.outcome) == (100, 100, None)
