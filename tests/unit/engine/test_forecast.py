"""Forecasts: the cluster state rolled forward without changing it."""

from gpu_scheduler.engine.forecast import Foresight, forecast, forecast_start, foresee
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.service import ENDLESS_MS
from tests.builders import (
    HOUR,
    MINUTE,
    a_job,
    a_node,
    a_policy,
    a_state,
    a_tenant,
    an_array,
    on,
    running,
    waiting,
)


def test_queued_jobs_are_forecast_one_after_another() -> None:
    state = a_state(
        nodes=[a_node(gpus=4)],
        held=[running(a_job(number=9, gpus=4), on("n0", range(4)), end_ms=HOUR)],
        queue=[
            a_job(number=1, gpus=4, estimate_ms=2 * HOUR),
            a_job(number=2, gpus=2, estimate_ms=HOUR),
            a_job(number=3, gpus=4),
        ],
    )
    assert forecast(state, 0) == {1: HOUR, 2: 3 * HOUR, 3: 4 * HOUR}


def test_job_that_fits_now_is_forecast_now() -> None:
    state = a_state(nodes=[a_node(gpus=4)], queue=[a_job(number=1), a_job(number=2)])
    assert forecast(state, MINUTE) == {1: MINUTE, 2: MINUTE}


def test_overdue_job_is_expected_to_end_next_millisecond() -> None:
    state = a_state(
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=HOUR)],
        queue=[a_job(number=1)],
    )
    assert forecast_start(state, 2 * HOUR, 1) == 2 * HOUR + 1


def test_lost_node_contributes_no_forecast_ends() -> None:
    nodes = [a_node(gpus=1, state=NodeState.LOST), a_node(ordinal=1, gpus=1)]
    stopping = running(a_job(number=9), on("n0", [0]), end_ms=HOUR, stopping=True)
    state = a_state(nodes=nodes, tenants=[a_tenant(gpus=1)], held=[stopping])
    state.enqueue(waiting(a_job(number=1)))
    found = Foresight()
    foresee(state, 0, found)
    assert (found.starts, found.is_whole) == ({}, True)


def test_job_that_never_fits_has_no_forecast() -> None:
    nodes = [a_node(gpus=1, device={"paused": True})]
    state = a_state(nodes=nodes, queue=[a_job(number=1)])
    assert forecast_start(state, 0, 1) is None


def test_next_task_of_array_is_forecast() -> None:
    state = a_state(
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=HOUR)],
        queue=[an_array(number=1, tasks="0-2"), a_job(number=2, submit_ms=5)],
    )
    starts = forecast(state, 0)
    assert starts == {1: HOUR, 2: 4 * HOUR}


def test_forecast_sees_quota_becoming_free() -> None:
    state = a_state(
        nodes=[a_node(gpus=8)],
        tenants=[a_tenant(gpus=2)],
        held=[running(a_job(number=9, gpus=2), on("n0", [0, 1]), end_ms=HOUR)],
        queue=[a_job(number=1, gpus=1, estimate_ms=HOUR), a_job(number=2, gpus=2)],
    )
    assert forecast(state, 0) == {1: HOUR, 2: 2 * HOUR}


def test_forecast_accepts_other_run_times() -> None:
    state = a_state(
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=HOUR)],
        queue=[a_job(number=1), a_job(number=2)],
    )
    starts = forecast(state, 10 * MINUTE, run_ms_of=lambda job, ran_ms: 3 * HOUR)
    assert starts == {1: 3 * HOUR, 2: 6 * HOUR}


def test_forecast_does_not_change_state() -> None:
    state = a_state(
        nodes=[a_node(gpus=2)],
        policy=a_policy(name="fair"),
        tenants=[a_tenant(gpus=2)],
        held=[running(a_job(number=9, gpus=1.5), on("n0", {0: 1000, 1: 500}))],
        queue=[a_job(number=n, gpus=g) for n, g in enumerate((2, 0.5, 1), start=1)],
    )
    before = state.snapshot()
    held = state.holdings.of("vision").gpu_milli
    assert forecast(state, 0) == forecast(state, 0)
    assert state.snapshot() == before
    assert state.holdings.of("vision").gpu_milli == held


def test_job_behind_endless_job_has_no_forecast() -> None:
    state = a_state(
        nodes=[a_node(gpus=1)],
        held=[running(a_job(number=9), on("n0", [0]), end_ms=ENDLESS_MS)],
        queue=[a_job(number=1)],
    )
    found = Foresight()
    foresee(state, 0, found, until=1)
    assert found.starts == {}
    assert found.is_whole


def test_forecast_lists_every_guessed_run_time_it_depends_on() -> None:
    held = [
        running(a_job(number=8), on("n0", [0]), end_ms=HOUR),
        running(a_job(number=9), on("n0", [1]), end_ms=2 * HOUR),
    ]
    queue = [a_job(number=1, gpus=2), a_job(number=2, gpus=2), a_job(number=3, gpus=2)]
    state = a_state(nodes=[a_node(gpus=2)], held=held, queue=queue)
    found = Foresight()
    foresee(state, 0, found, is_guess=lambda job, _: job.number in {8, 2})
    assert found.guesses == {1: {8}, 2: {8}, 3: {8, 2}}


def test_runs_of_a_forecast_have_places_and_every_task_of_an_array() -> None:
    state = a_state(
        nodes=[a_node(gpus=2)],
        queue=[
            an_array(tasks="0-2", number=1, estimate_ms=HOUR),
            a_job(number=2, estimate_ms=HOUR),
        ],
    )
    found = Foresight(runs=[])
    foresee(state, 0, found)
    assert found.runs is not None
    runs = {(run.number, run.task): (run.start_ms, run.end_ms) for run in found.runs}
    assert sorted(runs) == [(1, 0), (1, 1), (1, 2), (2, None)]
    assert sorted(runs.values()) == [(0, HOUR)] * 2 + [(HOUR, 2 * HOUR)] * 2
    assert all(run.placements[0].node_id == "n0" for run in found.runs)
    assert found.is_whole


def test_forecast_that_is_late_says_how_far_it_came() -> None:
    queue = [a_job(number=number, gpus=1, estimate_ms=HOUR) for number in range(1, 4)]
    state = a_state(nodes=[a_node(gpus=1)], queue=queue)
    found = Foresight()
    passes = iter((False, False, True))
    foresee(state, 0, found, is_late=lambda: next(passes))
    assert found.starts == {1: 0, 2: HOUR}
    assert (found.reached_ms, found.is_whole) == (HOUR, False)
