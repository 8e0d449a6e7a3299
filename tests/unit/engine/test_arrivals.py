"""Forecasts expect arrivals as in the last day, and leave no trace of them."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.arrivals import (
    FIRST_LESSON,
    FIRST_NUMBER,
    LONGEST_PERIOD_MS,
    MOST_EXPECTED,
    MOST_RECENT,
    MOST_REQUESTS,
    SHORTEST_PERIOD_MS,
    RecentArrivals,
    RecentRequests,
)
from gpu_scheduler.engine.forecast import Foresight, foresee
from gpu_scheduler.engine.state import cluster_state
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    a_job,
    a_node,
    a_policy,
    a_state,
    an_array,
    on,
    running,
    waiting,
)

URGENT = 9_000


def arrived(*jobs: Job) -> RecentArrivals:
    arrivals = RecentArrivals()
    for job in jobs:
        arrivals.note(replace(waiting(job), since_ms=job.submit_ms))
    return arrivals


def a_busy_state() -> ClusterState:
    """The only GPU is held until 25 hours from the start, and a job waits for it."""
    return a_state(
        policy=a_policy(name="fair"),
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=DAY + HOUR)],
        queue=[a_job(number=1, submit_ms=DAY)],
    )


def start_with(arrivals: RecentArrivals, state: ClusterState) -> tuple[int, Foresight]:
    found = Foresight()
    foresee(state, DAY, found, arrivals=arrivals)
    return found.starts[1], found


def test_more_urgent_arrival_of_yesterday_is_expected_to_overtake_today() -> None:
    urgent = a_job(number=5, submit_ms=HOUR - MINUTE, priority=URGENT, estimate_ms=2 * HOUR)
    state = a_busy_state()
    assert start_with(RecentArrivals(), state)[0] == DAY + HOUR
    start_ms, found = start_with(arrived(urgent), state)
    assert start_ms == DAY + 3 * HOUR
    assert set(found.starts) == {1}
    assert not found.guesses[1]


def test_arrival_that_does_not_overtake_changes_nothing() -> None:
    later = a_job(number=5, submit_ms=HOUR - MINUTE, priority=0)
    assert start_with(arrived(later), a_busy_state())[0] == DAY + HOUR


def test_forecast_leaves_no_expected_arrival_behind() -> None:
    state = a_busy_state()
    before = state.snapshot()
    urgent = a_job(number=5, submit_ms=HOUR - MINUTE, priority=URGENT)
    start_with(arrived(urgent), state)
    assert state.snapshot() == before
    assert set(state.queue.entries) == {1}


def test_submissions_repeat_after_a_day_or_sooner_if_there_are_many() -> None:
    few = arrived(a_job(number=1, submit_ms=HOUR))
    (first,), period_ms = few.expected(2 * HOUR)
    assert (first.job.submit_ms, period_ms) == (HOUR + DAY, LONGEST_PERIOD_MS)
    many = arrived(*(a_job(number=n, submit_ms=n * SECOND) for n in range(MOST_RECENT)))
    assert many.expected(MOST_RECENT * SECOND)[1] == SHORTEST_PERIOD_MS
    assert few.expected(2 * DAY)[0] == []


def test_expected_arrivals_are_bounded() -> None:
    many = arrived(*(a_job(number=n, submit_ms=n, gpus=1) for n in range(MOST_RECENT)))
    state = a_state(
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=1_000 * DAY)],
        queue=[a_job(number=1, submit_ms=0)],
    )
    entered = []
    add = state.queue.add
    state.queue.add = lambda entry: (entered.append(entry.number), add(entry))[1]  # type: ignore[method-assign]
    foresee(state, MOST_RECENT, Foresight(), arrivals=many)
    # Each is entered once before, so that its shape is known.
    assert len(entered) <= MOST_EXPECTED + MOST_RECENT
    assert all(number >= FIRST_NUMBER for number in entered)


def test_arrivals_of_more_shapes_than_the_state_remembers_are_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_state, "SPARE_SHAPES", 5)
    jobs = [
        a_job(number=9 + count, submit_ms=HOUR + count * MINUTE, memory_mb=count)
        for count in range(1, 41)
    ]
    start_ms, found = start_with(arrived(*jobs), a_busy_state())
    assert start_ms == DAY + HOUR
    assert found.is_whole


def test_demand_is_what_recent_submissions_asked_for() -> None:
    requests = RecentRequests()
    assert not any(requests.note(a_job(gpus=2)) for _ in range(FIRST_LESSON - 1))
    assert requests.demand == ()
    assert requests.note(a_job(gpus=8), count=3)
    assert [(shape.gpu_count, shape.count) for shape in requests.demand] == [(2, 63), (8, 3)]
    assert not requests.note(a_job(gpus=1)), "the next summary follows when twice as many came"


def test_demand_forgets_old_submissions() -> None:
    requests = RecentRequests()
    for gpus in (1, 2):
        for _ in range(2 * MOST_REQUESTS):
            requests.note(a_job(gpus=gpus))
    assert [(shape.gpu_count, shape.count) for shape in requests.demand] == [(2, MOST_REQUESTS)]


def test_demand_counts_members_and_tasks() -> None:
    requests = RecentRequests()
    for _ in range(FIRST_LESSON):
        requests.note(a_job(gpus=4, members=2))
        requests.note(an_array(tasks="0-9"))
    assert [(shape.gpu_count, shape.count) for shape in requests.demand] == [
        (1, 10 * FIRST_LESSON),
        (4, 2 * FIRST_LESSON),
    ]
