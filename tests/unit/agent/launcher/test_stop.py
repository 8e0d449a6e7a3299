"""Repeated kill attempts until a process is gone."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpu_scheduler.agent.launcher.context import LauncherContext
from gpu_scheduler.agent.launcher.lifecycle import stop
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.lifecycle.stop import Stopper
from gpu_scheduler.agent.launcher.loop import Loop
from gpu_scheduler.agent.launcher_protocol import Work


def test_timers_of_unkillable_process_do_not_accumulate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel may keep such a process for weeks, as on a vanished file server."""
    monkeypatch.setattr(stop, "KILL_RETRY_MS", 0)
    looks: list[Attempt] = []

    def tree(attempt: Attempt) -> set[int]:
        looks.append(attempt)
        return set()

    loop = Loop()
    context = SimpleNamespace(
        loop=loop,
        tracker=SimpleNamespace(tree=tree),
        journal=SimpleNamespace(append=lambda record: None),
    )
    attempt = Attempt(Work(allocation_id="a"))
    attempt.phase = Phase.RUNNING
    Stopper(cast(LauncherContext, context)).stop(attempt, "cancelled", 0)
    while len(looks) < 500:
        loop.turn()
    assert len(attempt.timers) < 10
