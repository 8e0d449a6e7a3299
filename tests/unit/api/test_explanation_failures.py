"""A bug that one job meets in a forecast or an explanation costs this job's answer only."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_scheduler.api.expected_times import Explainer
from gpu_scheduler.api.routes import metrics
from gpu_scheduler.engine import explain, forecast
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.predict.history import History
from gpu_scheduler.server.background.forecast_recorder import ForecastRecorder
from tests.unit.api.lab import ApiLab

POISON = "poison"


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    with capture_logs():  # traces with all variables take long to print
        yield


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(nodes=1, predictor=History()) as lab:
        yield lab


@pytest.fixture
def queue(lab: ApiLab) -> list[str]:
    """A job that runs, and three that wait for it; the second of those is the poisoned one."""
    ids = [
        lab.submit(gpu_count=8, max_runtime_minutes=60, name=name)
        for name in ("runs", "first", POISON, "last")
    ]
    lab.start(ids[0])
    return ids


def fail_in_forecasts(patch: pytest.MonkeyPatch) -> None:
    """Let the roll-out fail where it reaches the poisoned job."""
    original = forecast._RollOut._add_end

    def add_end(self: Any, started: Any, *args: Any) -> Any:
        if self._state.queue.entries[started.job.number].waiting.job.name == POISON:
            raise ZeroDivisionError
        return original(self, started, *args)

    patch.setattr(forecast._RollOut, "_add_end", add_end)


def test_explanation_that_fails_says_so_and_others_are_answered(
    lab: ApiLab, queue: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = explain.Reasons.of

    def fails(self: Any, number: int) -> Any:
        if self._state.queue.entries[number].waiting.job.name == POISON:
            raise ZeroDivisionError
        return original(self, number)

    monkeypatch.setattr(explain.Reasons, "of", fails)
    _, first, poison, _ = queue
    found = lab.get(f"/jobs/{poison}/explain")
    assert found.status == 200
    assert found.json["code"] == "unexplained"
    assert "internal error" in found.json["reason"]
    assert lab.get(f"/jobs/{first}/explain").json["code"] == "resources"
    assert lab.get("/overview").status == 200


def test_forecast_that_fails_keeps_the_starts_before_and_fails_no_list(
    lab: ApiLab, queue: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in_forecasts(monkeypatch)
    _, first, poison, last = queue
    found = lab.get(f"/jobs/{poison}/explain").json
    assert "internal error" in found["start_unknown"] or found["expected_start"]
    assert lab.get(f"/jobs/{first}/explain").json["expected_start"]
    assert lab.get(f"/jobs/{last}/explain").status == 200
    assert lab.get("/overview").status == 200
    trial = {"command": ["true"], "gpu_count": 8, "max_runtime_minutes": 60}
    assert lab.post("/jobs/validate", trial).status == 200
    # What waits still starts.
    lab.end(queue[0])
    lab.start(first)


def test_recorder_of_forecasts_goes_on_after_one_that_fails(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def a_recorder() -> ForecastRecorder:
        return ForecastRecorder(lab.loop)

    recorder = lab.run(a_recorder())
    ids = [
        lab.submit(gpu_count=8, max_runtime_minutes=60, name=name)
        for name in ("runs", "first", POISON, "last")
    ]
    lab.wait_for(ids[0], "scheduled")
    fail_in_forecasts(monkeypatch)
    for _ in ids:  # a round has a limit on its CPU time, which the trace may use up
        lab.run(recorder.record_next())
    assert ids[1] in lab.loop.core.state.estimates


def test_metrics_that_fail_leave_the_others_in_the_scrape(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_state: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(metrics, "pool_uses", fails)
    found = lab.get("/metrics", root=True)
    assert found.status == 200
    assert b"gpu_scheduler_gpus 8.0" in found.body
    assert b"gpu_scheduler_pool_gpus" not in found.body


def test_state_that_an_explanation_left_half_changed_is_read_again(
    lab: ApiLab, queue: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes while the explanation undoes what it tried."""
    before = lab.loop.core
    original = Transaction.undo
    left = [1]

    def fails(self: Transaction, mark: int = 0) -> None:
        if left[0]:
            left[0] -= 1
            raise ZeroDivisionError
        original(self, mark)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "undo", fails)
        lab.get(f"/jobs/{queue[1]}/explain")
    assert not left[0], "nothing failed"
    lab.submit()  # after this batch the state is another one
    while lab.loop.core is before:
        lab.get("/health", root=True)
    assert lab.loop.core.state.cluster.trials == 0
    assert len(lab.loop.core.state.cluster.queue) == 4
    assert Explainer(lab.loop).reason(queue[1]) is not None
