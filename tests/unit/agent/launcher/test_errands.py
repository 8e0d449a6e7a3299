"""Whoever sends a helper hears of its end, also if there is none."""

import errno
import os

import pytest

from gpu_scheduler.agent.launcher.context import Errands
from gpu_scheduler.agent.launcher.loop import Loop
from gpu_scheduler.agent.spawn.spawner import Launch, Spawner


def test_a_helper_that_cannot_be_started_for_want_of_descriptors_is_told_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container's job waits for this answer: without one it would never be over."""

    def no_more(_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    errands = Errands(Loop(), Spawner())
    monkeypatch.setattr(os, "pipe2", no_more)
    heard: list[tuple[bool, str]] = []
    launch = Launch(argv=("true",), environment={})
    assert errands.run(launch, 1_000, lambda well, text: heard.append((well, text))) == 0
    assert [well for well, _ in heard] == [False]
    assert "Too many open files" in heard[0][1]
