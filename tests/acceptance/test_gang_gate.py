"""The launcher's gate: no gang member runs before all are ready; if one fails, none runs."""

# ruff: noqa: ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher_protocol import Began, Over, Work
from tests.launcher_rig import Rig, log_line, with_launcher

PROLOG = """#!/bin/sh
[ "$TGPU_MEMBER" != 2 ] || { echo "member 2 has no licence"; exit 1; }
"""


def member(rig: Rig, number: int, of: int, **more: object) -> Work:
    """One member that records its start time."""
    return rig.work(
        "g.1",
        "sh",
        "-c",
        f"date +%s%N > {rig.directory}/ran.{number}; echo ran; exec sleep 60",
        member=number,
        members_here=of,
        log_path=str(rig.directory / "logs" / f"g.1.{number}.log"),
        scratch_dir=str(rig.directory / "scratch" / f"g.1.{number}"),
        **more,
    )


async def fence(rig: Rig) -> None:
    """Run another job to its end: earlier orders have been processed by then."""
    name = f"fence-{time.monotonic_ns()}"
    assert (await rig.run(rig.work(name, "true"))).exit_code == 0


def ran(rig: Rig) -> list[int]:
    """The start time of each member, in nanoseconds."""
    return [int(path.read_text()) for path in sorted(rig.directory.glob("ran.*"))]


async def overs(rig: Rig, count: int) -> dict[int, Over]:
    """The end reports of all members."""

    def found() -> dict[int, Over]:
        said = [r for r in rig.said if isinstance(r, Over) and r.allocation_id == "g.1"]
        ends = {end.member: end for end in said}
        return ends if len(ends) == count else {}

    return await rig.until(found)


async def child_at_gate(rig: Rig, number: int) -> int:
    """The process of a member that waits at its gate and has opened its log."""
    async with asyncio.timeout(20):
        while True:
            for pid in processes.descendants([rig.launcher.pid], processes.family()):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/fd/1").readlink().name == f"g.1.{number}.log":
                        return pid
            await asyncio.sleep(0.01)


def test_no_gang_member_runs_before_last_one_is_ready() -> None:
    async def scenario(rig: Rig) -> None:
        works = [member(rig, number, of=3) for number in range(3)]
        for work in works[:2]:
            await rig.launcher.start(work)
        await fence(rig)
        assert not [report for report in rig.said if report.allocation_id == "g.1"]
        last_ordered_ns = time.time_ns()
        await rig.launcher.start(works[2])
        for work in works:
            await log_line(rig, work, "ran")
        assert len(ran(rig)) == 3
        assert all(at_ns > last_ordered_ns for at_ns in ran(rig))

    with_launcher(scenario)


@pytest.mark.parametrize("late", [0, 2])
def test_gang_does_not_run_when_one_member_cannot_be_prepared(late: int) -> None:
    """The failing member may come first or last."""

    async def scenario(rig: Rig) -> None:
        order = [2, 0, 1] if late == 0 else [0, 1, 2]
        for number in order:
            workdir = "/nowhere/at/all" if number == 2 else str(rig.directory)
            await rig.launcher.start(member(rig, number, of=3, workdir=workdir))
        ends = await overs(rig, 3)
        assert not any(end.ran for end in ends.values())
        assert "/nowhere/at/all" in ends[2].detail
        assert [ends[number].stopped_by for number in range(3)] == ["gang", "gang", ""]
        assert "member 2 of the gang did not get ready" in ends[0].detail
        assert not ran(rig)
        assert not [report for report in rig.said if isinstance(report, Began)]

    with_launcher(scenario)


def test_gang_does_not_run_when_prolog_of_one_member_fails() -> None:
    async def scenario(rig: Rig) -> None:
        prolog = rig.directory / "prolog"
        prolog.write_text(PROLOG)
        prolog.chmod(0o755)
        for number in range(3):
            await rig.launcher.start(member(rig, number, of=3, prolog=(str(prolog),)))
        ends = await overs(rig, 3)
        assert not any(end.ran for end in ends.values())
        assert "member 2 has no licence" in ends[2].detail
        assert not ran(rig)

    with_launcher(scenario)


def test_gang_does_not_run_when_one_member_is_killed_at_gate() -> None:
    async def scenario(rig: Rig) -> None:
        for number in (0, 1):
            await rig.launcher.start(member(rig, number, of=3))
        await fence(rig)
        os.kill(await child_at_gate(rig, 1), signal.SIGKILL)
        first = await overs(rig, 2)
        assert first[1].detail == "its process ended before it ran the command"
        assert "member 1 of the gang did not get ready" in first[0].detail
        await rig.launcher.start(member(rig, 2, of=3))
        ends = first | await overs(rig, 3)
        assert not any(end.ran for end in ends.values())
        assert not ran(rig)

    with_launcher(scenario)


def test_member_waiting_at_gate_can_be_stopped() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(member(rig, 0, of=2))
        await fence(rig)
        await rig.launcher.stop("g.1", 0, "cancelled", None)
        end = (await overs(rig, 1))[0]
        assert (end.ran, end.stopped_by) == (False, "cancelled")
        assert not ran(rig)

    with_launcher(scenario)


def test_members_waiting_at_gate_never_run_when_launcher_dies() -> None:
    async def scenario(rig: Rig) -> None:
        for number in (0, 1):
            await rig.launcher.start(member(rig, number, of=3))
        await fence(rig)
        await rig.kill_launcher()
        ends = await overs(rig, 2)
        assert not any(end.ran for end in ends.values())
        # The last order is repeated: the member must not run alone.
        await rig.launcher.start(member(rig, 2, of=3))
        assert not (await overs(rig, 3))[2].ran
        assert not ran(rig)

    with_launcher(scenario)
