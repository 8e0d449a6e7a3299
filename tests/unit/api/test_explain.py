"""Forecasts on request equal the engine's own and never block the event loop for long."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_scheduler.api.expected_times import MOST_FORECAST_S, Explainer
from gpu_scheduler.engine.arrivals import RecentArrivals
from gpu_scheduler.engine.forecast import forecast
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.predict.start_ranges import StartRanges
from tests.builders import Stated, a_job, a_node, a_state, on, running

HOUR = 3_600_000


def an_explainer(cluster: ClusterState, **changes: Any) -> Explainer:
    service = SimpleNamespace(
        core=SimpleNamespace(
            state=SimpleNamespace(
                cluster=cluster,
                predictor=Stated(),
                recent_arrivals=RecentArrivals(),
                start_ranges=StartRanges(),
            )
        ),
        loop_metrics=SimpleNamespace(messages=1),
        now_ms=lambda: 1_000,
    )
    return Explainer(service, **changes)  # type: ignore[arg-type]


def a_queue(jobs: int) -> ClusterState:
    chance = random.Random(3)
    queue = [
        a_job(
            number=number,
            gpus=chance.choice([0.5, 1, 2, 4, 8]),
            estimate_ms=chance.randint(1, 10) * HOUR,
        )
        for number in range(1, jobs + 1)
    ]
    held = [
        running(a_job(number=9_000, estimate_ms=5 * HOUR), on("n0", [0, 1, 2]), end_ms=5 * HOUR)
    ]
    return a_state(nodes=[a_node()], queue=queue, held=held)


@pytest.mark.parametrize("number", [1, 5, 12])
def test_requested_forecast_equals_engine_forecast(number: int) -> None:
    cluster = a_queue(12)
    expected = forecast(cluster, 1_000, until=number).get(number)
    explainer = an_explainer(cluster, clock=lambda: 0.0)
    assert explainer.expected_start_ms(number) == expected
    assert expected is not None


def test_slow_forecast_is_aborted_and_leaves_state_unchanged() -> None:
    cluster = a_queue(3_000)
    before = cluster.snapshot()
    times = (number * MOST_FORECAST_S / 10 for number in itertools.count())
    assert an_explainer(cluster, clock=lambda: next(times)).expected_start_ms(3_000) is None
    assert next(times) < 3 * MOST_FORECAST_S, "it goes on after its time"
    assert cluster.snapshot() == before
    assert an_explainer(cluster, clock=lambda: 0.0).expected_start_ms(1) is not None


def test_forecast_is_cached_briefly() -> None:
    cluster = a_queue(12)
    now = [0.0]
    explainer = an_explainer(cluster, clock=lambda: now[0])
    first = explainer.expected_start_ms(12)
    cluster.dequeue(1)
    assert explainer.expected_start_ms(12) == first
    now[0] += 10
    assert explainer.expected_start_ms(12) is not None


def test_head_of_queue_has_position_one() -> None:
    cluster = a_queue(30)
    explainer = an_explainer(cluster)
    order = [entry.number for entry in cluster.queue.in_order()]
    assert [explainer.position(number) for number in order] == list(range(1, 31))
    assert explainer.position(9_000) is None
