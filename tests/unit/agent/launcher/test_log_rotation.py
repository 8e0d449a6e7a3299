"""The launcher's share of rotating logs is small, however much jobs write."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.launcher.log_rotation import MAX_ROTATIONS, LogRotation
from gpu_scheduler.agent.launcher.rotate_log import rotate
from gpu_scheduler.agent.launcher_protocol import Work

LIMIT = 1000


class Children:
    """Started children, which end when the test says so."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.ends: list[Callable[[], None]] = []

    def start(
        self, argv: tuple[str, ...], _: int, done: Callable[..., None], *arguments: Any
    ) -> None:
        self.commands.append(argv)
        self.ends.append(lambda: done(*arguments, True, ""))

    def rotated(self) -> list[str]:
        """The names of the logs, in the order of their rotation."""
        return [Path(command[4]).name for command in self.commands]


def a_large_log(directory: Path, name: str, uid: int) -> Work:
    """A log of a terabyte, which takes no space."""
    path = directory / name
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return Work(
        allocation_id=f"{name}.1", uid=uid, log_path=str(path), log_max_bytes=LIMIT, log_files=1
    )


def test_check_of_many_flooded_logs_reads_none_and_starts_few_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [a_large_log(tmp_path, f"{number}", number) for number in range(50)]
    children = Children()
    rotation = LogRotation(children.start)
    for name in ("open", "read", "pread", "write", "ftruncate", "truncate", "replace"):
        monkeypatch.delattr(os, name)
    for _ in range(3):
        for work in works:
            rotation.check(work)
    assert len(children.commands) == MAX_ROTATIONS


def test_rotation_of_one_user_delays_no_other_user(tmp_path: Path) -> None:
    children = Children()
    rotation = LogRotation(children.start)
    for number in range(20):
        rotation.check(a_large_log(tmp_path, f"flood-{number}", 1))
    rotation.check(a_large_log(tmp_path, "other", 2))
    assert children.rotated() == ["flood-0", "other"]


def test_every_waiting_log_is_rotated_once(tmp_path: Path) -> None:
    children = Children()
    rotation = LogRotation(children.start)
    works = [a_large_log(tmp_path, f"{number}", number % 3) for number in range(9)]
    for work in [*works, *works]:
        rotation.check(work)
    while children.ends:
        children.ends.pop(0)()
    assert sorted(children.rotated()) == [str(number) for number in range(9)]


def test_small_log_and_file_of_user_are_left_alone(tmp_path: Path) -> None:
    children = Children()
    rotation = LogRotation(children.start)
    large = a_large_log(tmp_path, "large", 1)
    rotation.check(
        Work(allocation_id="a.1", log_path=large.log_path, log_max_bytes=1, log_of_user=True)
    )
    (tmp_path / "small").write_bytes(bytes(LIMIT))
    rotation.check(Work(allocation_id="b.1", log_path=str(tmp_path / "small"), log_max_bytes=LIMIT))
    assert children.commands == []


def test_child_rotates_the_log(tmp_path: Path) -> None:
    children = Children()
    path = tmp_path / "log"
    path.write_bytes(b"x" * (LIMIT + 1))
    work = Work(allocation_id="a.1", log_path=str(path), log_max_bytes=LIMIT, log_files=1)
    LogRotation(children.start).check(work)
    subprocess.run(children.commands[0], check=True)
    assert path.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"x" * (LIMIT + 1)


def test_flooded_log_is_cut_to_a_small_part(tmp_path: Path) -> None:
    """Otherwise copies of many flooded logs would take longer than their growth."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * (8 * LIMIT) + b"end")
    rotate(str(path), LIMIT, 1)
    assert path.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"x" * (LIMIT // 8 - 3) + b"end"


def test_what_a_job_writes_during_the_copy_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (LIMIT + 1))
    write = os.write

    def write_while_job_writes(file: int, data: bytes) -> int:
        if b"late" not in data:
            with path.open("ab") as log:
                log.write(b"late")
        return write(file, data)

    monkeypatch.setattr(os, "write", write_while_job_writes)
    rotate(str(path), LIMIT, 1)
    assert (tmp_path / "log.1").read_bytes().endswith(b"xlate")
