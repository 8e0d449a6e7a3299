"""Forecasts of waiting jobs are recorded without delaying other work."""

import asyncio
from unittest.mock import patch

import pytest

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetNode, Submit
from gpu_scheduler.server.background import forecast_recorder
from gpu_scheduler.server.background.forecast_recorder import MAX_POSTPONED, ForecastRecorder
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core, a_job, a_node

WAITING = 5


async def told_turns() -> tuple[int, set[str]]:
    """The number of event-loop turns during the forecasts, and the jobs that got one."""
    loop = Loop(MemoryStore(), a_core, lambda: 0)
    loop.start()
    await loop.apply(SetNode(a_node(gpus=1)))
    recorder = ForecastRecorder(loop)
    for _ in range(WAITING + 1):
        await loop.apply(Submit(a_job(id="")))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    await recorder.record_next()
    others.cancel()
    told = set(loop.core.state.estimates)
    await loop.close()
    return turns, told


def test_event_loop_runs_between_forecasts() -> None:
    turns, told = asyncio.run(told_turns())
    assert len(told) == WAITING
    assert turns > WAITING


def test_recording_stops_at_time_budget_and_continues_later() -> None:
    async def told_after_each_look() -> list[int]:
        loop = Loop(MemoryStore(), a_core, lambda: 0)
        loop.start()
        await loop.apply(SetNode(a_node(gpus=1)))
        recorder = ForecastRecorder(loop)
        for _ in range(WAITING + 1):
            await loop.apply(Submit(a_job(id="")))
        counts = []
        for _ in range(WAITING + 1):
            await recorder.record_next()
            counts.append(len(loop.core.state.estimates))
        await loop.close()
        return counts

    with patch.object(forecast_recorder, "CPU_LIMIT_S", 0.0):
        counts = asyncio.run(told_after_each_look())
    assert counts == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize("burst_goes_on", [False, True])
def test_recording_is_delayed_during_bursts_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, burst_goes_on: bool
) -> None:
    monkeypatch.setattr("gpu_scheduler.server.background.forecast_recorder.BURST", 3)

    async def told_after_each_look() -> list[bool]:
        loop = Loop(MemoryStore(), a_core, lambda: 0)
        loop.start()
        await loop.apply(SetNode(a_node(gpus=1)))
        recorder = ForecastRecorder(loop)
        told = []
        for number in range(MAX_POSTPONED + 1):
            for _ in range(4 if burst_goes_on or number == 0 else 0):
                await loop.apply(Submit(a_job(id="")))
            await recorder.record_next()
            told.append(bool(loop.core.state.estimates))
        await loop.close()
        return told

    assert asyncio.run(told_after_each_look()) == (
        [False] * MAX_POSTPONED + [True] if burst_goes_on else [False] + [True] * MAX_POSTPONED
    )
