"""Disk health: a full disk is reported, and jobs that failed because of it are node failures."""

import asyncio
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gpu_scheduler.agent import machine
from gpu_scheduler.agent.launcher_protocol import NOT_BEGUN, Over
from gpu_scheduler.agent.machine import DiskHealth, LocalMachine, Machine, may_be_disk_failure

FULL = "cannot write /state/attempts: No space left on device"


def an_over(*, ran: bool = False, detail: str = FULL, stopped_by: str = "") -> Over:
    return Over(
        allocation_id="j1.1",
        member=0,
        exit_code=None,
        signal=None,
        ran=ran,
        at_ms=0,
        run_ms=0,
        stopped_by=stopped_by,
        detail=detail,
    )


class Disk:
    """A machine whose disk state the test sets."""

    def __init__(self) -> None:
        self.problem = ""
        self.tried: list[bool] = []

    async def disk_problem(self, directory: Path, *, test_write: bool) -> str:
        self.tried.append(test_write)
        return self.problem


def with_disk(work: Callable[[Disk, DiskHealth, list[str]], object]) -> None:
    disk, said = Disk(), list[str]()
    health = DiskHealth(cast(Machine, disk), Path("/state"), lambda: said.append(health.problem))

    async def run() -> None:
        await cast("asyncio.Future[None]", work(disk, health, said))

    asyncio.run(run())


def test_job_that_failed_on_a_full_disk_is_a_node_failure() -> None:
    async def work(disk: Disk, health: DiskHealth, said: list[str]) -> None:
        disk.problem = "the disk is full"
        blamed = await health.blame_node_for(an_over())
        assert blamed.stopped_by == NOT_BEGUN
        assert blamed.detail == f"{FULL}; the disk is full"
        assert (said, disk.tried) == (["the disk is full"], [True])

    with_disk(work)


def test_job_that_failed_on_another_disk_keeps_its_failure() -> None:
    async def work(disk: Disk, health: DiskHealth, said: list[str]) -> None:
        assert await health.blame_node_for(an_over()) == an_over()
        assert said == []

    with_disk(work)


def test_each_change_of_disk_health_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(disk: Disk, health: DiskHealth, said: list[str]) -> None:
        states = ["", "", "the disk is full", "the disk is full", ""]
        disk.problem = states.pop(0)

        async def pass_time(_: float) -> None:
            if not states:
                raise TimeoutError
            disk.problem = states.pop(0)

        monkeypatch.setattr(asyncio, "sleep", pass_time)
        with pytest.raises(TimeoutError):
            await health.watch(5)
        assert said == ["the disk is full", ""]
        # While the disk is healthy only the free space is read.
        assert disk.tried == [False, False, False, True, True]

    with_disk(work)


@pytest.mark.parametrize(
    ("over", "may_be"),
    [
        (an_over(), True),
        (an_over(detail="cannot prepare the job: [Errno 28] no space left on device: '/x'"), True),
        (an_over(detail="cannot run 'x': no such file or directory"), False),
        (an_over(ran=True), False),
        (an_over(stopped_by="cancelled"), False),
    ],
)
def test_only_a_job_that_never_started_may_be_a_disk_failure(over: Over, may_be: bool) -> None:
    assert may_be_disk_failure(over) == may_be


def test_disk_with_free_space_has_no_problem_and_the_test_file_is_removed(tmp_path: Path) -> None:
    assert asyncio.run(LocalMachine().disk_problem(tmp_path, test_write=True)) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "said"),
    [
        ({"f_bavail": 3}, "is full: less than 4 MiB are free"),
        ({"f_favail": 3}, "is full: it can hold no more files"),
        ({"f_files": 0, "f_favail": 0}, ""),
    ],
)
def test_full_disk_reports_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], said: str
) -> None:
    facts = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 1000, "f_favail": 900} | free
    answer = namedtuple("Free", facts)(**facts)
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    found = machine.disk_problem(tmp_path, test_write=False)
    assert found.endswith(said)
    assert bool(found) == bool(said)


def test_missing_directory_is_a_problem(tmp_path: Path) -> None:
    found = machine.disk_problem(tmp_path / "gone", test_write=True)
    assert found == f"nothing can be written to {tmp_path / 'gone'}: No such file or directory"


def test_check_of_a_hanging_disk_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.agent.machine.DISK_TIMEOUT_S", 0.02)
    looks: list[Path] = []

    async def hang(_: object, directory: Path, *, test_write: bool) -> str:
        looks.append(directory)
        await asyncio.Event().wait()
        return ""

    async def run() -> None:
        local = LocalMachine()
        monkeypatch.setattr(asyncio, "to_thread", hang)
        for _ in range(3):
            said = await local.disk_problem(tmp_path, test_write=False)
            assert said == f"{tmp_path} does not answer"

    asyncio.run(run())
    assert len(looks) == 1
