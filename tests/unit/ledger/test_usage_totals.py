"""All time of an allocation is charged once, to a tenant and a user, in its period."""

from dataclasses import astuple, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.units import DAY_MS, Period
from gpu_scheduler.ledger.usage import Totals, UsageInterval, UsageTotals
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import JobState
from tests.unit.ledger.builders import (
    HOUR,
    NOV_15_2025,
    an_interval,
    intervals,
    many_intervals,
)

ADA = ("vision", "ada")


def charged(charges: list[UsageInterval], period: Period = Period.MONTH) -> UsageTotals:
    """Totals in which every allocation started with its first interval."""
    accounts = UsageTotals(period)
    starts: dict[str, int] = {}
    for interval in charges:
        start_ms = starts.get(interval.allocation_id, interval.start_ms)
        starts[interval.allocation_id] = min(start_ms, interval.start_ms)
    for allocation_id, start_ms in starts.items():
        accounts.begin(allocation_id, start_ms)
    for interval in charges:
        accounts.charge(interval)
    return accounts


def so_far(interval: UsageInterval, end_ms: int) -> UsageInterval:
    """The same allocation, as charged up to an earlier time."""
    return replace(interval, end_ms=end_ms, outcome=None, lost_ms=0)


def test_gpu_hour_is_charged_to_tenant_and_user() -> None:
    accounts = charged([an_interval()])
    expected = Totals(
        gpu_milli_ms=1000 * HOUR,
        gpu_memory_mb_ms=81_920 * HOUR,
        cpu_milli_ms=4000 * HOUR,
        memory_mb_ms=8192 * HOUR,
        completed=1,
    )
    assert accounts.total("vision") == accounts.total(ADA) == expected
    assert accounts.total_in("vision", NOV_15_2025) == expected
    assert accounts.total("speech") == accounts.total(("vision", "bob")) == Totals()


def test_preemption_counts_with_lost_work() -> None:
    accounts = charged([an_interval(outcome=JobState.PREEMPTED, lost_ms=60_000)])
    assert accounts.total(ADA).preemptions == 1
    assert accounts.total(ADA).lost_gpu_milli_ms == 60_000_000
    assert accounts.total(ADA).completed == 0


def test_requeued_attempt_costs_time_and_counts_as_no_end() -> None:
    totals = charged([an_interval(outcome=JobState.PENDING)]).total(ADA)
    assert totals.gpu_milli_ms == 1000 * HOUR
    assert (totals.completed, totals.failed, totals.cancelled, totals.preemptions) == (0, 0, 0, 0)


def test_same_interval_is_charged_once() -> None:
    once, twice = charged([an_interval()]), charged([an_interval(), an_interval()])
    assert twice.to_rows() == once.to_rows()
    assert twice.charge(an_interval()) is None


def test_allocation_that_never_started_is_ignored() -> None:
    accounts = UsageTotals()
    assert accounts.charge(an_interval()) is None
    assert accounts.to_rows() == ([], [])


def test_only_running_allocations_are_remembered() -> None:
    accounts = UsageTotals()
    accounts.begin("a1", NOV_15_2025)
    accounts.begin("a1", NOV_15_2025 + 5)
    assert accounts.to_rows()[1] == [("a1", NOV_15_2025)]
    accounts.charge(so_far(an_interval(), NOV_15_2025 + 20))
    assert accounts.to_rows()[1] == [("a1", NOV_15_2025 + 20)]
    accounts.charge(an_interval())
    assert accounts.to_rows()[1] == []


def test_charge_returns_only_new_part() -> None:
    accounts = UsageTotals()
    accounts.begin("a1", NOV_15_2025)
    first = accounts.charge(so_far(an_interval(), NOV_15_2025 + 20))
    assert first == so_far(an_interval(), NOV_15_2025 + 20)
    assert accounts.charge(so_far(an_interval(), NOV_15_2025 + 10)) is None
    assert accounts.charge(an_interval()) == replace(an_interval(), start_ms=NOV_15_2025 + 20)


def test_end_before_charged_time_still_counts_as_end() -> None:
    accounts = UsageTotals()
    accounts.begin("a1", NOV_15_2025)
    accounts.charge(so_far(an_interval(), NOV_15_2025 + 20))
    last = accounts.charge(an_interval(end_ms=NOV_15_2025 + 10))
    assert last is not None
    assert last.duration_ms == 0
    assert accounts.total(ADA).completed == 1
    assert accounts.total(ADA).gpu_milli_ms == 20_000


@given(
    intervals(),
    st.lists(st.integers(0, 100 * DAY_MS), max_size=6),
    st.randoms(use_true_random=False),
)
def test_charging_in_parts_does_not_change_totals(
    interval: UsageInterval, cuts: list[int], chance: Random
) -> None:
    parts = [so_far(interval, min(interval.start_ms + cut, interval.end_ms)) for cut in cuts]
    chance.shuffle(parts)
    for period in Period:
        whole = charged([interval], period)
        assert charged([*parts, interval], period).to_rows() == whole.to_rows()


@given(many_intervals(), st.randoms(use_true_random=False))
def test_order_of_charges_does_not_matter(some: list[UsageInterval], chance: Random) -> None:
    shuffled = list(some)
    chance.shuffle(shuffled)
    assert charged(shuffled).to_rows() == charged(some).to_rows()


@given(many_intervals(), st.sampled_from(Period))
def test_users_and_periods_sum_to_tenant_and_nothing_is_negative(
    some: list[UsageInterval], period: Period
) -> None:
    accounts = charged(some, period)
    rows, running = accounts.to_rows()
    assert running == []
    for tenant in ("vision", "speech"):
        for kind in ("user", "period", "total"):
            picked = [
                sums
                for start_ms, owner, user, sums in rows
                if owner == tenant
                and (start_ms is not None) == (kind == "period")
                and (user is not None) == (kind == "user")
            ]
            summed = tuple(map(sum, zip(*picked, strict=True))) or astuple(Totals())
            assert summed == astuple(accounts.total(tenant))
    assert all(amount >= 0 for *_, sums in rows for amount in sums)


def test_time_over_midnight_is_split_and_end_counts_on_later_day() -> None:
    interval = an_interval(start_ms=NOV_15_2025 - HOUR, end_ms=NOV_15_2025 + 2 * HOUR)
    accounts = charged([interval], Period.DAY)
    before = accounts.total_in(ADA, NOV_15_2025 - 1)
    after = accounts.total_in(ADA, NOV_15_2025)
    assert (before.gpu_milli_ms, before.completed) == (1000 * HOUR, 0)
    assert (after.gpu_milli_ms, after.completed) == (2000 * HOUR, 1)


def test_jobs_ended_while_waiting_are_counted() -> None:
    accounts = UsageTotals()
    accounts.count_ended("vision", "ada", JobState.CANCELLED, at_ms=NOV_15_2025, tasks=40)
    assert accounts.total_in("vision", NOV_15_2025) == Totals(cancelled=40)
    with pytest.raises(InternalError):
        accounts.count_ended("vision", "ada", JobState.PREEMPTED, at_ms=0)
    with pytest.raises(InternalError):
        accounts.count_ended("vision", "ada", JobState.FAILED, at_ms=0, tasks=-1)


@given(many_intervals(), st.sampled_from(Period))
def test_saved_totals_are_restored(some: list[UsageInterval], period: Period) -> None:
    accounts = charged(some, period)
    accounts.begin("b1", NOV_15_2025)
    restored = UsageTotals.from_rows(*accounts.to_rows(), period=period)
    for each in (accounts, restored):
        each.charge(an_interval(allocation_id="b1"))
    assert restored.to_rows() == accounts.to_rows()


def test_invalid_rows_are_rejected() -> None:
    sums = (0,) * len(astuple(Totals()))
    with pytest.raises(InternalError, match="cannot be right"):
        UsageTotals.from_rows([(None, "vision", None, (-1, *sums[1:]))], [])
    with pytest.raises(InternalError, match="cannot be right"):
        UsageTotals.from_rows([(None, "vision", None, (*sums, 0))], [])
    with pytest.raises(InternalError, match="no month begins"):
        UsageTotals.from_rows([(NOV_15_2025, "vision", None, sums)], [])


def test_rows_of_older_version_lack_newer_sums() -> None:
    restored = UsageTotals.from_rows([(None, "vision", None, (7,))], [])
    assert restored.total("vision") == Totals(gpu_milli_ms=7)
