"""A node whose disk is full says so, takes the blame for what met it, and is fit again later."""

import asyncio
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gpu_scheduler.agent import machine as room
from gpu_scheduler.agent.machine import Fitness, Machine, ThisMachine, may_be_the_disk
from gpu_scheduler.agent.work import NOT_BEGUN, Over

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
    """A machine whose disk is as the test says."""

    def __init__(self) -> None:
        self.trouble_is = ""
        self.tried: list[bool] = []

    async def trouble(self, directory: Path, *, is_suspect: bool) -> str:
        self.tried.append(is_suspect)
        return self.trouble_is


def with_disk(work: Callable[[Disk, Fitness, list[str]], object]) -> None:
    disk, said = Disk(), list[str]()
    fitness = Fitness(cast(Machine, disk), Path("/state"), lambda: said.append(fitness.unfit))

    async def run() -> None:
        await cast("asyncio.Future[None]", work(disk, fitness, said))

    asyncio.run(run())


def test_who_met_a_full_disk_is_to_be_tried_elsewhere() -> None:
    async def work(disk: Disk, fitness: Fitness, said: list[str]) -> None:
        disk.trouble_is = "the disk is full"
        blamed = await fitness.blame(an_over())
        assert blamed.stopped_by == NOT_BEGUN
        assert blamed.detail == f"{FULL}; the disk is full"
        assert (said, disk.tried) == (["the disk is full"], [True])

    with_disk(work)


def test_who_met_another_full_disk_than_that_of_the_node_keeps_its_failure() -> None:
    async def work(disk: Disk, fitness: Fitness, said: list[str]) -> None:
        assert await fitness.blame(an_over()) == an_over()
        assert said == []

    with_disk(work)


def test_a_node_becomes_unfit_and_fit_again_and_says_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(disk: Disk, fitness: Fitness, said: list[str]) -> None:
        states = ["", "", "the disk is full", "the disk is full", ""]
        disk.trouble_is = states.pop(0)

        async def pass_time(_: float) -> None:
            if not states:
                raise TimeoutError
            disk.trouble_is = states.pop(0)

        monkeypatch.setattr(asyncio, "sleep", pass_time)
        with pytest.raises(TimeoutError):
            await fitness.watch(5)
        assert said == ["the disk is full", ""]
        # As long as nothing is wrong it is only asked how much is free.
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
def test_only_what_never_began_may_have_met_a_full_disk(over: Over, may_be: bool) -> None:
    assert may_be_the_disk(over) == may_be


def test_a_disk_with_room_is_no_trouble_and_nothing_stays_on_it(tmp_path: Path) -> None:
    assert asyncio.run(ThisMachine().trouble(tmp_path, is_suspect=True)) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "said"),
    [
        ({"f_bavail": 3}, "is full: less than 4 MiB are free"),
        ({"f_favail": 3}, "is full: it can hold no more files"),
        ({"f_files": 0, "f_favail": 0}, ""),
    ],
)
def test_a_disk_without_room_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], said: str
) -> None:
    facts = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 1000, "f_favail": 900} | free
    answer = namedtuple("Free", facts)(**facts)
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    found = room.disk_trouble(tmp_path, is_suspect=False)
    assert found.endswith(said)
    assert bool(found) == bool(said)


def test_a_directory_that_is_gone_is_a_trouble(tmp_path: Path) -> None:
    found = room.disk_trouble(tmp_path / "gone", is_suspect=True)
    assert found == f"nothing can be written to {tmp_path / 'gone'}: No such file or directory"


def test_a_disk_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.agent.machine.PATIENCE_S", 0.02)
    looks: list[Path] = []

    async def hang(_: object, directory: Path, *, is_suspect: bool) -> str:
        looks.append(directory)
        await asyncio.Event().wait()
        return ""

    async def run() -> None:
        machine = ThisMachine()
        monkeypatch.setattr(asyncio, "to_thread", hang)
        for _ in range(3):
            said = await machine.trouble(tmp_path, is_suspect=False)
            assert said == f"{tmp_path} does not answer"

    asyncio.run(run())
    assert len(looks) == 1
