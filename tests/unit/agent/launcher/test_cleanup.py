"""Scans for leftover processes of a job."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpu_scheduler.agent.launcher.context import AttemptEvents, LauncherContext
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.lifecycle.cleanup import Cleanup
from gpu_scheduler.agent.launcher_protocol import Over, Work
from gpu_scheduler.agent.runners.interface import Ending


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({}, 1), ({"adopted": True}, 2), ({"engine_unresponsive": True}, 2)],
    ids=["our own child", "started by another launcher", "in a container of a hanging engine"],
)
def test_processes_found_only_by_scan_are_scanned_twice(
    facts: dict[str, bool], expected: int
) -> None:
    """A scan can miss a process that forks meanwhile, and devices must not be reallocated then."""
    scanned: list[Attempt] = []

    def leftovers(attempt: Attempt) -> set[int]:
        scanned.append(attempt)
        return set()

    attempt = Attempt(Work(allocation_id="a"))
    for name, value in facts.items():
        setattr(attempt, name, value)
    context = SimpleNamespace(
        tracker=SimpleNamespace(leftovers=leftovers),
        loop=SimpleNamespace(after=lambda _, callback, *arguments: callback(*arguments)),
        log_rotation=SimpleNamespace(check=lambda _: None),
        boot="boot",
    )
    finished: list[Over] = []
    events = SimpleNamespace(cleanup_finished=lambda _, over: finished.append(over))
    cleanup = Cleanup(cast(LauncherContext, context), cast(AttemptEvents, events))
    cleanup.begin(attempt, Ending(ran=False))
    assert len(scanned) == expected
    assert len(finished) == 1
