"""The caller of a helper command always gets a result."""

import errno
import os

import pytest

from gpu_scheduler.agent.launcher.context import HelperCommands
from gpu_scheduler.agent.launcher.loop import Loop
from gpu_scheduler.agent.spawn.spawner import Launch, Spawner


def test_helper_that_cannot_start_without_descriptors_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job of a container waits for this answer: without one it would never end."""

    def no_more(_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    helpers = HelperCommands(Loop(), Spawner(), "mark")
    monkeypatch.setattr(os, "pipe2", no_more)
    results: list[tuple[bool, str]] = []
    launch = Launch(argv=("true",), environment={})
    assert helpers.run(launch, 1_000, lambda well, text: results.append((well, text))) == 0
    assert [well for well, _ in results] == [False]
    assert "Too many open files" in results[0][1]
