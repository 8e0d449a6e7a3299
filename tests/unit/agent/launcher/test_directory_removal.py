"""Scratch directories are removed for each user apart, and again after a failure."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.launcher import directory_removal
from gpu_scheduler.agent.launcher.directory_removal import DirectoryRemoval
from gpu_scheduler.agent.launcher.scratch import DISCARDED_PREFIX, DirectoryPool

ANN, BOB = 1000, 1001


class Children:
    """Timers and children that run when the test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.running: list[tuple[tuple[str, ...], Callable[[bool, str], None]]] = []

    def after(self, wait_ms: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.timers.append((wait_ms, lambda: callback(*arguments)))

    def run(
        self, argv: tuple[str, ...], _: int, done: Callable[..., None], *arguments: Any
    ) -> None:
        self.running.append((argv, lambda ok, text: done(*arguments, ok, text)))

    def fire(self) -> list[float]:
        """Call all timers; returns how long each waited."""
        due, self.timers = self.timers, []
        for _, callback in due:
            callback()
        return [wait_ms for wait_ms, _ in due]

    def finish(self, *, ok: bool) -> list[str]:
        """End the oldest child; returns its directories, which are gone if it succeeded."""
        argv, done = self.running.pop(0)
        paths = list(argv[3:])
        if ok:
            for path in paths:
                shutil.rmtree(path)
        done(ok, "" if ok else "it took longer than 60 s")
        return paths


def a_removal() -> tuple[DirectoryRemoval, Children]:
    children = Children()
    return DirectoryRemoval(children.run, children.after), children


def a_directory(home: Path, name: str) -> str:
    path = home / name
    path.mkdir()
    return str(path)


def test_directories_of_one_user_do_not_wait_for_another(tmp_path: Path) -> None:
    removal, children = a_removal()
    for number in range(3):
        removal.add(ANN, a_directory(tmp_path, f"a{number}"))
    removal.add(BOB, a_directory(tmp_path, "b"))
    children.fire()
    assert len(children.running) == 2
    del children.running[0]  # the child of ann hangs
    assert children.finish(ok=True) == [str(tmp_path / "b")]


def test_failed_removal_is_tried_again_with_back_off(tmp_path: Path) -> None:
    removal, children = a_removal()
    path = a_directory(tmp_path, "large")
    removal.add(ANN, path)
    children.fire()
    pauses = []
    for _ in range(12):
        children.finish(ok=False)
        assert removal.failed(ANN) == 1
        pauses += children.fire()
    assert pauses[:3] == [1_000, 2_000, 4_000]
    assert pauses[-1] == directory_removal.MAX_PAUSE_MS
    children.finish(ok=True)
    assert removal.failed(ANN) == 0
    assert not Path(path).exists()
    assert (children.timers, children.running) == ([], [])


def test_only_what_is_left_is_tried_again_after_new_directories(tmp_path: Path) -> None:
    removal, children = a_removal()
    stuck, removed = a_directory(tmp_path, "stuck"), a_directory(tmp_path, "removed")
    removal.add(ANN, stuck)
    removal.add(ANN, removed)
    children.fire()
    Path(removed).rmdir()
    children.finish(ok=False)
    new = a_directory(tmp_path, "new")
    removal.add(ANN, new)
    children.fire()
    assert children.finish(ok=True) == [new]
    children.fire()
    assert children.finish(ok=True) == [stuck]


def test_user_with_too_many_directories_left_starts_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_removal, "MAX_LEFT", 2)
    removal, children = a_removal()
    for number in range(2):
        removal.check_limit(ANN)
        removal.add(ANN, a_directory(tmp_path, f"{number}"))
    children.fire()
    children.finish(ok=False)
    with pytest.raises(OSError, match="could not be removed"):
        removal.check_limit(ANN)
    removal.check_limit(BOB)
    children.fire()
    children.finish(ok=True)
    removal.check_limit(ANN)


def test_children_are_few_however_many_users_have_directories(tmp_path: Path) -> None:
    removal, children = a_removal()
    for uid in range(20):
        removal.add(uid, a_directory(tmp_path, f"{uid}"))
    children.fire()
    assert len(children.running) == directory_removal.MAX_CHILDREN
    while children.running:
        children.finish(ok=True)
    assert list(tmp_path.iterdir()) == []


def test_directories_of_former_launcher_are_removed(tmp_path: Path) -> None:
    left = a_directory(tmp_path, f"{DISCARDED_PREFIX}7")
    removal, children = a_removal()
    pool = DirectoryPool(removal)
    assert not pool.take(str(tmp_path / "job-1.1.0"), ANN)
    children.fire()
    assert children.finish(ok=True) == [left]
