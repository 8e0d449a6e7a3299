"""Starts that hang time out: directories, files, processes, gang members."""

# These tests poll files; their event loop has nothing else to do.

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher_protocol import (
    OPTIONAL_FIELDS,
    Over,
    Prepared,
    Work,
    decode_work,
    encode_work,
    split_known_fields,
)
from tests.hanging_directories import hanging_directory, stuck_directory
from tests.launcher_rig import NOBODY, Rig, log_line, with_launcher

pytestmark = pytest.mark.slow

SOON_MS = 1_500
"""Enough for a busy machine to start a job up to the point where it hangs."""


def gate_children(rig: Rig) -> list[int]:
    """Children of the launcher that are not its fork server."""
    children = Path(f"/proc/{rig.launcher.pid}/task/{rig.launcher.pid}/children").read_text()
    return [int(pid) for pid in children.split()][1:]


def of_member(rig: Rig, name: str, member: int, *argv: str, **more: object) -> Work:
    places = {
        "scratch_dir": str(rig.directory / "scratch" / f"{name}.{member}"),
        "log_path": str(rig.directory / "logs" / f"{name}.{member}.log"),
    }
    return rig.work(name, *argv, member=member, members_here=2, **{**places, **more})


async def over_of(rig: Rig, name: str, member: int) -> Over:
    def find() -> Over | None:
        found = [o for o in rig.said if isinstance(o, Over) and o.allocation_id == name]
        return next((over for over in found if over.member == member), None)

    over = await rig.until(find)
    assert over is not None
    return over


def assert_given_up(over: Over, *words: str) -> None:
    assert (over.ran, over.exit_code, over.signal) == (False, None, None)
    assert over.stopped_by == "not_begun"
    for word in words:
        assert word in over.detail


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "nobody"])
def test_job_with_hanging_working_directory_fails_after_timeout(user: int) -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            work = rig.work(
                "job-1.1",
                "true",
                uid=user,
                gid=user,
                workdir=str(gone),
                start_timeout_ms=SOON_MS,
            )
            over = await rig.run(work)
        assert_given_up(over, "within 1.5 s", f"working directory '{gone}'")
        assert over.detail.count("within") == 1

    with_launcher(scenario)


def test_job_with_hanging_output_file_fails_after_timeout() -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            output = f"{gone}/out.txt"
            work = rig.work(
                "job-1.1", "true", log_path=output, log_of_user=True, start_timeout_ms=SOON_MS
            )
            over = await rig.run(work)
        assert_given_up(over, f"output file '{output}'")

    with_launcher(scenario)


def test_hanging_program_or_script_is_named() -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            work = rig.work("job-1.1", f"{gone}/train", start_timeout_ms=SOON_MS)
            assert (await rig.run(work)).detail.endswith(f"hung over the program '{gone}/train'")
            script = f"#!{gone}/python\n"
            work = rig.work("job-2.1", script=script, start_timeout_ms=SOON_MS)
            assert (await rig.run(work)).detail.endswith("hung over its script")

    with_launcher(scenario)


def test_members_with_hanging_working_directory_end_their_gang() -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            hangs = of_member(
                rig, "job-1.1", 0, "true", workdir=str(gone), start_timeout_ms=SOON_MS
            )
            ready = of_member(rig, "job-1.1", 1, "true")
            await rig.start_many([hangs, ready])
            assert_given_up(await over_of(rig, "job-1.1", 0), "working directory")
            other = await over_of(rig, "job-1.1", 1)
        assert (other.ran, other.stopped_by) == (False, "gang")
        assert "member 0 of the gang did not get ready" in other.detail

    with_launcher(scenario)


def test_member_whose_gang_never_arrives_fails_after_timeout() -> None:
    async def scenario(rig: Rig) -> None:
        alone = of_member(rig, "job-1.1", 0, "true", start_timeout_ms=SOON_MS)
        await rig.launcher.start(alone)
        assert_given_up(await over_of(rig, "job-1.1", 0), "not all members", "within 3 s")

    with_launcher(scenario)


def test_waiting_members_are_not_blamed_for_missing_one() -> None:
    """The member that has waited longest times out first."""

    async def scenario(rig: Rig) -> None:
        for member, soon_ms in enumerate((SOON_MS, 20_000)):
            work = of_member(rig, "job-1.1", member, "true", start_timeout_ms=soon_ms)
            await rig.launcher.start(replace(work, members_here=3))
        for member in range(2):
            over = await over_of(rig, "job-1.1", member)
            assert_given_up(over, "not all members of the gang were ready within 3 s")
            assert "did not get ready" not in over.detail

    with_launcher(scenario)


def test_stopped_prepared_member_that_cannot_run_fails_after_timeout() -> None:
    """It reported that it is ready; that it never ran is certain, because it never read the go."""

    async def scenario(rig: Rig) -> None:
        ran = rig.directory / "ran"
        work = rig.work("job-1.1", "touch", str(ran), prepare_ms=60_000, start_timeout_ms=SOON_MS)
        await rig.launcher.start(work)
        await rig.until(lambda: any(isinstance(report, Prepared) for report in rig.said))
        (child,) = gate_children(rig)
        os.kill(child, signal.SIGSTOP)
        await rig.launcher.commit("job-1.1", 0, {}, {})
        assert_given_up(await rig.over("job-1.1"), "its process was stopped by a signal")
        assert not ran.exists()
        assert not processes.is_running(child)

    with_launcher(scenario)


@pytest.mark.parametrize("runner", ["terminal", "tmux"])
def test_sessions_with_hanging_working_directory_fail_after_timeout(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            work = rig.work(
                "job-1.1", "true", runner=runner, workdir=str(gone), start_timeout_ms=2 * SOON_MS
            )
            over = await rig.run(work)
        assert (over.exit_code, over.signal) == (None, None)
        assert f"working directory '{gone}'" in over.detail or "did not open" in over.detail

    with_launcher(scenario)


def test_unkillable_child_keeps_its_devices_and_blocks_no_other() -> None:
    async def scenario(rig: Rig) -> None:
        with stuck_directory(rig.directory / "gone") as gone:
            stuck = of_member(
                rig, "job-1.1", 0, "true", workdir=str(gone.place), start_timeout_ms=SOON_MS
            )
            ready = of_member(rig, "job-1.1", 1, "true")
            await rig.start_many([stuck, ready])
            await asyncio.to_thread(gone.is_entered.wait, 20)
            # The other member is released, other jobs run, and the member in question is not over.
            assert (await over_of(rig, "job-1.1", 1)).stopped_by == "gang"
            assert (await rig.run(rig.work("job-2.1", "true"))).exit_code == 0
            await log_line(rig, stuck, "cannot be killed; its devices are kept until it is gone")
            held = {(name, member): over for name, member, over in await rig.launcher.held()}
            assert held["job-1.1", 0] is None
            gone.let_go()
            assert_given_up(await over_of(rig, "job-1.1", 0), "working directory")

    with_launcher(scenario)


def test_older_launcher_works_without_start_timeouts() -> None:
    work = Work(allocation_id="a", argv=("true",), start_timeout_ms=1, engine_timeout_ms=2)
    known = frozenset(Work.__slots__) - set(OPTIONAL_FIELDS)
    form, unknown = split_known_fields(encode_work(work), known)
    assert unknown == []
    assert decode_work(form) == Work(allocation_id="a", argv=("true",))
