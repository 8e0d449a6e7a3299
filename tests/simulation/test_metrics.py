"""Simulation metrics on runs small enough to compute by hand."""

import math

import pytest

from gpu_scheduler.simulator.metrics import (
    Distribution,
    distribution,
    jain,
    jain_by_weight,
    measure,
    percentile,
    received_within,
    shared_backlog,
)
from tests.simulation.runs import a_run, a_sample, an_outcome

# --- spread --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 10), (25, 17.5), (50, 25), (90, 37), (99, 39.7), (100, 40)]
)
def test_percentile_is_interpolated_between_ranks(percent: float, expected: float) -> None:
    assert percentile([10, 20, 30, 40], percent) == pytest.approx(expected)


def test_distribution_does_not_depend_on_order() -> None:
    assert distribution([3000, 1000, 2000]) == distribution([1000, 2000, 3000])
    assert distribution([3000, 1000, 2000]) == Distribution(
        mean_s=2, median_s=2, p90_s=2.8, p99_s=2.98, p999_s=2.998, max_s=3
    )


def test_empty_distribution_is_zero() -> None:
    assert distribution([]).max_s == 0
    empty = measure(a_run())
    assert (empty.jobs, empty.makespan_s, empty.utilisation_percent) == (0, 0, 0)
    assert (empty.tenants, empty.partitions, empty.forecast) == ((), (), None)


# --- waits, completion, slowdown -----------------------------------------------------------------


def test_one_job_is_its_own_mean_and_tail() -> None:
    measures = measure(a_run(an_outcome(submit_s=50, wait_s=20, run_s=80)))
    assert set(_figures(measures.wait)) == {20}
    assert set(_figures(measures.jct)) == {100}
    assert measures.makespan_s == 100
    assert measures.mean_bounded_slowdown == measures.median_bounded_slowdown == 1.25


def test_jobs_that_never_waited_have_no_wait_and_no_slowdown() -> None:
    measures = measure(a_run(an_outcome(), an_outcome(submit_s=5), an_outcome(submit_s=9)))
    assert set(_figures(measures.wait)) == {0}
    assert measures.mean_bounded_slowdown == 1


def test_job_without_run_time_counts_as_ten_seconds_in_slowdown() -> None:
    waited_long = an_outcome(wait_s=50, run_s=0)
    waited_little = an_outcome(wait_s=4, run_s=0)
    measures = measure(a_run(waited_long, waited_little))
    assert measures.mean_bounded_slowdown == 3  # (50 / 10 and, never below 1, 1) / 2
    assert measures.utilisation_percent == 0
    assert measures.lost_percent == 0


# --- the cluster ---------------------------------------------------------------------------------


def test_utilisation_counts_useful_and_lost_work() -> None:
    measures = measure(
        a_run(
            an_outcome(run_s=3600, gpus=2),
            an_outcome(run_s=1800, lost_s=1800, gpus=1, preemptions=2),
        )
    )
    assert measures.used_gpu_hours == 3
    assert measures.utilisation_percent == 75
    assert (measures.preemptions, measures.preempted_jobs) == (2, 1)
    assert measures.lost_gpu_hours == 0.5
    assert measures.lost_percent == 20


def test_sampled_means_are_weighted_by_time() -> None:
    samples = [
        a_sample(0, allocated=4, waiting=1),
        a_sample(10, allocated=2, waiting=3, fragmented=2),
        a_sample(30, allocated=0),
        a_sample(40),
    ]
    measures = measure(a_run(samples={"main": samples}))
    assert measures.allocated_percent == pytest.approx(100 * (4 * 10 + 2 * 20) / (4 * 40))
    assert measures.allocated_backlog_percent == pytest.approx(100 * (40 + 40) / (4 * 30))
    assert measures.fragmentation_percent == pytest.approx(100 * 2 * 20 / (4 * 40))


def test_backlog_of_one_partition_does_not_count_for_another() -> None:
    samples = {
        "busy": [a_sample(0, allocated=3, waiting=1), a_sample(10)],
        "idle": [a_sample(0, allocated=0), a_sample(5), a_sample(10)],
    }
    measures = measure(a_run(samples=samples, partition_gpus={"busy": 3, "idle": 1}))
    assert measures.allocated_backlog_percent == 100
    assert measures.allocated_percent == 75


@pytest.mark.parametrize("samples", [{}, {"main": [a_sample(7, allocated=4)]}])
def test_no_mean_without_span_of_samples(samples: dict) -> None:
    measures = measure(a_run(an_outcome(), samples=samples))
    assert measures.allocated_percent is None
    assert measures.allocated_backlog_percent is None
    assert measures.fragmentation_percent is None


def test_partitions_of_unknown_size_give_no_backlog() -> None:
    both = {name: [a_sample(0, waiting=1), a_sample(9)] for name in ("a", "b")}
    assert measure(a_run(samples=both)).allocated_backlog_percent is None


# --- fairness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 1, 1], 1), ([1, 0, 0, 0], 0.25), ([2, 1], 0.9), ([0, 0], 1), ([], 1)],
)
def test_jains_index(values: list[float], expected: float) -> None:
    assert jain(values) == pytest.approx(expected)


def test_fairness_is_weighted() -> None:
    run = a_run(an_outcome(tenant="large", gpus=3), an_outcome(tenant="small", gpus=1))
    assert measure(run).jain == pytest.approx(16 / (2 * 10))
    weighted = measure(run, {"large": 3000})
    assert weighted.jain == pytest.approx(1)
    large, small = weighted.tenants
    assert (large.share_percent, large.entitled_share_percent) == (75, 75)
    assert (small.weight_milli, small.entitled_share_percent) == (1000, 25)


def test_backlogged_period_is_overlap_of_all_waits() -> None:
    backlogs = {"a": [(0, 10), (5, 20), (40, 50)], "b": [(15, 45)], "c": [(0, 100)]}
    assert shared_backlog(backlogs) == [(15, 20), (40, 45)]
    assert shared_backlog({"a": [(0, 10)], "b": [(10, 20)]}) == []
    assert shared_backlog({"a": [(0, 10)], "b": []}) == []
    assert shared_backlog({}) == []


def test_only_usage_inside_windows_counts() -> None:
    holdings = [("a", 1000, 0, 100), ("a", 500, 18, 42), ("b", 1000, 20, 40), ("b", 1000, 44, 99)]
    received = received_within(holdings, [(15, 20), (40, 45)])
    assert received == {"a": 1000 * 10 + 500 * (2 + 2), "b": 1000}
    assert received_within(holdings, []) == {}


def test_backlogged_index_ignores_other_time() -> None:
    windows = shared_backlog({"a": [(0, 10)], "b": [(0, 10)]})
    after = ("b", 9000, 10, 1000)
    received = received_within([("a", 2000, 0, 10), after], windows)
    assert jain_by_weight(received, {}) == 0.5
    even = received_within([("a", 2000, 0, 10), ("b", 1000, 0, 10), after], windows)
    assert jain_by_weight(even, {"a": 2000}) == 1


def test_run_shows_service_while_all_tenants_waited() -> None:
    # From 0 to 100 s both tenants have a job in the queue and only a's first job runs.
    run = a_run(
        an_outcome(tenant="a", run_s=100),
        an_outcome(tenant="a", wait_s=200, run_s=100),
        an_outcome(tenant="b", wait_s=100, run_s=100),
    )
    measures = measure(run)
    assert measures.backlogged_s == 100
    assert measures.jain_backlogged == 0.5
    assert [tenant.backlogged_share_percent for tenant in measures.tenants] == [100, 0]


def test_single_tenant_has_perfect_fairness() -> None:
    measures = measure(a_run(an_outcome(wait_s=9)))
    assert (measures.jain, measures.jain_backlogged) == (1, None)
    assert measures.tenants[0].backlogged_share_percent is None


# --- the forecast --------------------------------------------------------------------------------


def test_no_forecasts_give_no_forecast_error() -> None:
    assert measure(a_run(an_outcome(wait_s=1000))).forecast is None


def test_short_wait_needs_no_forecast() -> None:
    assert measure(a_run(an_outcome(wait_s=60, promised_s=9000))).forecast is None


def test_forecasts_are_kept_early_or_late() -> None:
    hour = 3600
    forecast = measure(
        a_run(
            an_outcome(wait_s=700, promised_s=100),  # ten minutes late: kept
            an_outcome(wait_s=701, promised_s=100),  # a second more: late
            an_outcome(wait_s=100, promised_s=701),  # early
            an_outcome(wait_s=11 * hour, promised_s=10 * hour),  # within 10 % of ten hours: kept
            an_outcome(wait_s=9 * hour - 1, promised_s=10 * hour),  # a second too early
        )
    ).forecast
    assert forecast is not None
    assert forecast.jobs == 5
    assert (forecast.kept_percent, forecast.early_percent, forecast.late_percent) == (40, 40, 20)
    assert forecast.median_absolute_error_s == 601


# --- tables by name ------------------------------------------------------------------------------


def test_tenants_and_partitions_are_listed_by_name() -> None:
    measures = measure(
        a_run(
            an_outcome(tenant="b", partition="y", wait_s=10, run_s=90),
            an_outcome(tenant="a", partition="y", wait_s=30, run_s=10),
            an_outcome(tenant="b", partition="x", wait_s=20, run_s=80, lost_s=3520, gpus=2),
            partition_gpus={"x": 3, "y": 1},
        )
    )
    assert [tenant.name for tenant in measures.tenants] == ["a", "b"]
    second = measures.tenants[1]
    assert (second.jobs, second.mean_wait_s) == (2, 15)
    assert second.mean_jct_s == (100 + 3620) / 2
    assert second.gpu_hours == pytest.approx((90 + 2 * 3600) / 3600)
    assert second.mean_bounded_slowdown == pytest.approx((100 / 90 + 100 / 80) / 2)
    assert [(p.name, p.jobs, p.capacity_gpu_milli) for p in measures.partitions] == [
        ("x", 1, 3000),
        ("y", 2, 1000),
    ]


def test_order_of_outcomes_does_not_matter() -> None:
    outcomes = [
        an_outcome(submit_s=n, wait_s=7 * n % 90, tenant="abc"[n % 3], promised_s=n + 5)
        for n in range(50)
    ]
    forwards, backwards = measure(a_run(*outcomes)), measure(a_run(*reversed(outcomes)))
    assert forwards.wait == backwards.wait
    assert forwards.forecast == backwards.forecast
    for one, other in zip(forwards.tenants, backwards.tenants, strict=True):
        assert one.name == other.name
        assert math.isclose(one.mean_bounded_slowdown, other.mean_bounded_slowdown)


def _figures(spread: Distribution) -> tuple[float, ...]:
    return (
        spread.mean_s,
        spread.median_s,
        spread.p90_s,
        spread.p99_s,
        spread.p999_s,
        spread.max_s,
    )
