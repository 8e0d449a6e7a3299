"""Ordering keys in milliseconds of waiting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.engine.fair_share import fair_ratio_milli
from gpu_scheduler.engine.policy import Feedback, Order
from gpu_scheduler.engine.priority import (
    PROTECTED_LEVEL,
    largest_gap_ms,
    level_of,
    log2_milli,
    order_key,
    short_penalty_ms,
    static_class,
    useful_thresholds,
)
from gpu_scheduler.model.tenant import Tier
from tests.builders import DAY, HOUR, MINUTE, a_job, a_tenant, waiting

PLAIN = Order(class_point_ms=0)


def key(job, order: Order, tenant=None, **changes) -> int:
    return order_key(waiting(job, **changes), tenant or a_tenant(), order)


def test_class_is_tier_plus_priority() -> None:
    assert static_class(a_job(priority=750), a_tenant(tier=Tier.HIGH)) == 2750


def test_key_is_submission_time_without_weights() -> None:
    assert key(a_job(submit_ms=5000, priority=2500), PLAIN) == 5000
    assert key(a_job(submit_ms=5000), Order(class_point_ms=0, age=False)) == 0


def test_every_class_point_is_worth_its_milliseconds() -> None:
    order = Order(class_point_ms=MINUTE)
    low, high = (a_job(priority=priority) for priority in (250, 251))
    assert key(low, order) - key(high, order) == MINUTE


def test_expected_run_time_counts_minus_attained_service() -> None:
    order = Order(class_point_ms=0, expected_milli=500)
    assert key(a_job(), order, expected_ms=8000, attained_ms=2000) == 3000


def test_doubling_of_run_time_costs_same_at_every_length() -> None:
    order = Order(class_point_ms=0, short_ms=1000, short_cap_ms=100_000, short_floor_ms=MINUTE)
    costs = [short_penalty_ms(waiting(a_job(), expected_ms=MINUTE << n), order) for n in range(5)]
    assert costs == [0, 1000, 2000, 3000, 4000]


def test_more_gpus_cost_by_doublings_up_to_cap() -> None:
    order = Order(class_point_ms=0, short_ms=1000, short_cap_ms=4500, short_gpu_percent=50)
    eight = waiting(a_job(gpus=8), expected_ms=2 * MINUTE)
    assert short_penalty_ms(eight, order) == 1000 + 1500
    assert short_penalty_ms(waiting(a_job(gpus=8), expected_ms=DAY), order) == 4500
    assert short_penalty_ms(waiting(a_job(gpus=0.5), expected_ms=1), order) == 0


def test_deadline_lifts_at_most_by_weight_and_only_when_near() -> None:
    order = Order(class_point_ms=0, deadline_ms=DAY)
    job = a_job(submit_ms=HOUR, deadline_ms=HOUR + 10 * HOUR)
    assert key(job, order, expected_ms=4 * HOUR) == HOUR - (DAY - 6 * HOUR)
    assert key(a_job(deadline_ms=1), order, expected_ms=HOUR) == -DAY
    assert key(a_job(deadline_ms=9 * DAY), order, expected_ms=HOUR) == 0
    assert key(a_job(), order, expected_ms=HOUR) == 0


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 10 * DAY))
def test_job_that_waited_largest_gap_is_passed_by_no_later_job(
    low: int, high: int, expected_ms: int
) -> None:
    order = Order(class_point_ms=MINUTE, short_ms=HOUR, short_cap_ms=DAY, deadline_ms=DAY)
    gap_ms = largest_gap_ms(order, class_span=10_000)
    old = a_job(number=1, submit_ms=0, priority=low)
    new = a_job(number=2, submit_ms=gap_ms + 1, priority=high, deadline_ms=gap_ms + 2)
    assert key(old, order, expected_ms=expected_ms) < key(new, order, expected_ms=1)


# --- levels


def test_job_drops_one_level_at_each_threshold() -> None:
    feedback = Feedback(thresholds_ms=(100, 1000), by_gpus=False)
    assert [level_of(ms, 8000, feedback) for ms in (0, 99, 100, 999, 1000)] == [0, 0, 1, 1, 2]


def test_attained_service_counts_gpus_and_share_as_whole() -> None:
    feedback = Feedback(thresholds_ms=(1000,), by_gpus=True)
    assert level_of(250, 4000, feedback) == 1
    assert level_of(249, 4000, feedback) == 0
    assert level_of(999, 100, feedback) == 0
    assert level_of(1000, 100, feedback) == 1


HOURS_1_TO_8 = [hours * HOUR for hours in (1, 1, 1, 1, 1, 1, 8, 8, 8, 8)]


def test_threshold_is_used_if_jobs_past_it_have_more_left_than_before() -> None:
    many = HOURS_1_TO_8 * 10
    # On average jobs have 3.8 h ahead; past 2 h they have 6 h, past 7 h only one.
    assert useful_thresholds(many, (2 * HOUR, 7 * HOUR)) == (2 * HOUR,)
    assert useful_thresholds(many, (7 * HOUR,)) == ()


def test_no_threshold_is_used_where_all_jobs_take_about_as_long() -> None:
    alike = [HOUR + minute * MINUTE for minute in range(100)]
    assert useful_thresholds(alike, (HOUR // 2, HOUR, 2 * HOUR)) == ()


def test_every_decade_is_used_where_run_times_have_a_long_tail() -> None:
    tail = [10**8 // number for number in range(1, 301)]
    assert useful_thresholds(tail, (10**6, 10**7, 10**8)) == (10**6, 10**7), "one got to 10^8"


def test_no_threshold_is_used_before_any_job_has_ended() -> None:
    assert useful_thresholds((), (1000,)) == ()


def test_protected_job_ranks_above_all_levels() -> None:
    assert level_of(10**9, 1000, Feedback(thresholds_ms=(1,)), protected=True) == PROTECTED_LEVEL
    assert PROTECTED_LEVEL < 0


# --- functions


@pytest.mark.parametrize(("number", "expected"), [(0, 0), (1, 0), (2, 1000), (3, 1500), (4, 2000)])
def test_logarithm_is_exact_at_powers_of_two_and_linear_between(number, expected) -> None:
    assert log2_milli(number) == expected


@given(st.integers(1, 10**12))
def test_logarithm_is_close_and_monotonic(number: int) -> None:
    assert abs(log2_milli(number) - 1000 * math.log2(number)) <= 90
    assert log2_milli(number + 1) >= log2_milli(number)


def test_fair_ratio_of_1000_is_exactly_fair_share() -> None:
    assert fair_ratio_milli(50, 1000, 100, 2000) == 1000
    assert fair_ratio_milli(50, 2000, 100, 3000) == 750
    assert fair_ratio_milli(0, 1000, 100, 2000) == 0
    assert fair_ratio_milli(50, 1000, 0, 2000) == 0
