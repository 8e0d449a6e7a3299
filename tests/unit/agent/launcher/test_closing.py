"""When nothing of a job is left."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.lifecycle.cleanup import Closer
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.work import Report, Work


@pytest.mark.parametrize(
    ("facts", "looks"),
    [({}, 1), ({"adopted": True}, 2), ({"engine_silent": True}, 2)],
    ids=["our own child", "begun by another launcher", "in a container of a silent engine"],
)
def test_who_is_found_by_a_walk_alone_is_looked_for_twice(
    facts: dict[str, bool], looks: int
) -> None:
    """A walk can miss a process that forks meanwhile, and devices must not be given out then."""
    looked: list[Attempt] = []

    def left(attempt: Attempt) -> set[int]:
        looked.append(attempt)
        return set()

    attempt = Attempt(Work(allocation_id="a"), None)
    for name, value in facts.items():
        setattr(attempt, name, value)
    reports: list[Report] = []
    kit = SimpleNamespace(
        attempts={attempt.key: attempt},
        census=SimpleNamespace(left=left, strays=list),
        journal=SimpleNamespace(append_softly=lambda record, written: written("")),
        loop=SimpleNamespace(after=lambda _, callback: callback()),
        report=reports.append,
    )
    Closer(cast(Kit, kit)).ended(attempt, Ending(ran=False))
    assert len(looked) == looks
    assert len(reports) == 1
