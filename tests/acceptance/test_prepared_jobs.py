"""A prepared job waits at its gate for a commit, and never runs without one."""

import os
import signal
import time
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.launcher_protocol import Began, Over, Prepared, Work
from tests.launcher_rig import Rig, log_line, with_launcher

SAYS = 'echo "$MASTER_ADDR:$MASTER_PORT $RANK"; cat "$TGPU_HOSTFILE"; echo done'
LATE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1"}
FILES = {"hostfile": "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"}


def prepared(rig: Rig, *, member: int = 1, prepare_ms: int = 60_000, **more: object) -> Work:
    """A member of a gang over nodes that prints its rendezvous address."""
    scratch = str(rig.directory / "scratch" / f"g.1.{member}")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "MASTER_PORT": "0",
        "TGPU_HOSTFILE": f"{scratch}/hostfile",
    }
    return rig.work(
        "g.1",
        *("sh", "-c", SAYS),
        member=member,
        prepare_ms=prepare_ms,
        environment=environment,
        files={"hostfile": "not known yet\n"},
        log_path=str(rig.directory / "logs" / f"g.1.{member}.log"),
        scratch_dir=scratch,
        **more,
    )


async def fence(rig: Rig) -> None:
    """Run another job to its end: earlier orders have been processed by then."""
    assert (await rig.run(rig.work(f"fence-{time.monotonic_ns()}", "true"))).exit_code == 0


def began(rig: Rig) -> list[int]:
    return [r.member for r in rig.said if isinstance(r, Began) and r.allocation_id == "g.1"]


def overs(rig: Rig) -> list[Over]:
    return [r for r in rig.said if isinstance(r, Over) and r.allocation_id == "g.1"]


def waiting_process(rig: Rig) -> int:
    """The process that waits at its gate, found by its log."""
    threads = Path(f"/proc/{rig.launcher.pid}/task").iterdir()
    children = [pid for t in threads for pid in (t / "children").read_text().split()]
    logs = {pid: Path(f"/proc/{pid}/fd/1").readlink().name for pid in children}
    return next(int(pid) for pid, name in logs.items() if name == "g.1.1.log")


def test_prepared_job_runs_after_commit_with_its_data() -> None:
    async def scenario(rig: Rig) -> None:
        work = prepared(rig)
        await rig.launcher.start(work)
        assert (await rig.report(Prepared, "g.1")).member == 1
        await fence(rig)
        assert not began(rig)
        assert rig.log(work) == ""
        await rig.launcher.commit("g.1", 1, LATE, FILES)
        assert (await rig.over("g.1")).exit_code == 0
        assert rig.log(work).splitlines() == [
            "10.0.0.1:29500 1",
            "10.0.0.1 slots=8",
            "10.0.0.2 slots=8",
            "done",
        ]
        await rig.launcher.commit("g.1", 1, LATE, FILES)  # repeating it changes nothing
        assert began(rig) == [1]

    with_launcher(scenario)


def test_prepared_job_without_commit_times_out_and_late_commit_is_rejected() -> None:
    async def scenario(rig: Rig) -> None:
        work = prepared(rig, prepare_ms=300)
        await rig.launcher.start(work)
        end = await rig.over("g.1")
        assert (end.ran, end.stopped_by) == (False, "not_begun")
        assert "no commit came within 0.3 s" in end.detail
        with pytest.raises(OrderRefused, match="does not wait for a commit any more"):
            await rig.launcher.commit("g.1", 1, LATE, FILES)
        await fence(rig)
        assert rig.log(work) == ""
        assert not began(rig)

    with_launcher(scenario)


def test_members_without_commit_time_out_together_without_blame() -> None:
    async def scenario(rig: Rig) -> None:
        for member, prepare_ms in enumerate((300, 60_000)):
            work = prepared(rig, member=member, prepare_ms=prepare_ms, members_here=2)
            await rig.launcher.start(work)
        ends = await rig.until(lambda: two if len(two := overs(rig)) == 2 else [])
        assert [(end.ran, end.stopped_by) for end in ends] == [(False, "not_begun")] * 2
        assert {end.detail for end in ends} == {"it was prepared, and no commit came within 0.3 s"}

    with_launcher(scenario)


def test_commit_for_unknown_job_is_rejected() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(OrderRefused, match="not known on this node"):
            await rig.launcher.commit("g.1", 1, LATE, FILES)

    with_launcher(scenario)


@pytest.mark.parametrize("text", ["a\0b", 7])
def test_invalid_commit_is_rejected_and_valid_one_still_accepted(text: object) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(prepared(rig))
        await rig.report(Prepared, "g.1")
        with pytest.raises(OrderRefused, match="bad order"):
            await rig.launcher.commit("g.1", 1, {"RANK": text}, {})  # type: ignore[dict-item]
        await rig.launcher.commit("g.1", 1, LATE, FILES)
        assert (await rig.over("g.1")).exit_code == 0

    with_launcher(scenario)


def test_prepared_job_can_be_stopped_and_not_committed_afterwards() -> None:
    async def scenario(rig: Rig) -> None:
        work = prepared(rig)
        await rig.launcher.start(work)
        await rig.report(Prepared, "g.1")
        await rig.launcher.stop("g.1", 1, "cancelled", None)
        end = await rig.over("g.1")
        assert (end.ran, end.stopped_by) == (False, "cancelled")
        with pytest.raises(OrderRefused):
            await rig.launcher.commit("g.1", 1, LATE, FILES)
        assert not began(rig)

    with_launcher(scenario)


def test_prepared_job_whose_launcher_dies_never_ran_and_can_be_retried() -> None:
    async def scenario(rig: Rig) -> None:
        work = prepared(rig)
        await rig.launcher.start(work)
        await rig.report(Prepared, "g.1")
        await rig.kill_launcher()
        end = await rig.over("g.1")
        assert (end.ran, end.stopped_by) == (False, "not_begun")
        with pytest.raises(OrderRefused):
            await rig.launcher.commit("g.1", 1, LATE, FILES)
        assert rig.log(work) == ""

    with_launcher(scenario)


def test_members_on_one_node_are_prepared_and_end_together() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(prepared(rig, member=1, members_here=2))
        await fence(rig)
        assert not [report for report in rig.said if isinstance(report, Prepared)]
        await rig.launcher.start(prepared(rig, member=2, members_here=2))
        await rig.until(lambda: sum(isinstance(r, Prepared) for r in rig.said) == 2)
        await rig.launcher.stop("g.1", 2, "cancelled", None)
        ends = await rig.until(
            lambda: (
                {r.member: r for r in rig.said if isinstance(r, Over)}
                if sum(isinstance(r, Over) and r.allocation_id == "g.1" for r in rig.said) == 2
                else {}
            )
        )
        assert (ends[1].ran, ends[1].stopped_by) == (False, "gang")
        assert not began(rig)

    with_launcher(scenario)


def test_reconnecting_agent_learns_that_job_is_prepared_not_started() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(prepared(rig))
        await rig.report(Prepared, "g.1")
        await rig.hang_up()
        await rig.launcher.close()
        rig.said.clear()
        await rig.open()
        assert (await rig.report(Prepared, "g.1")).member == 1
        await fence(rig)
        assert not began(rig)
        await rig.launcher.commit("g.1", 1, LATE, FILES)
        assert (await rig.over("g.1")).exit_code == 0

    with_launcher(scenario)


def test_process_killed_while_prepared_never_ran() -> None:
    async def scenario(rig: Rig) -> None:
        work = prepared(rig)
        await rig.launcher.start(work)
        await rig.report(Prepared, "g.1")
        os.kill(waiting_process(rig), signal.SIGKILL)
        assert not (await rig.over("g.1")).ran
        with pytest.raises(OrderRefused):
            await rig.launcher.commit("g.1", 1, LATE, FILES)

    with_launcher(scenario)


def test_session_waits_for_commit() -> None:
    """With the runner that is always available: a terminal."""

    async def scenario(rig: Rig) -> None:
        work = prepared(rig, runner="terminal")
        await rig.launcher.start(work)
        await rig.report(Prepared, "g.1")
        assert not began(rig)
        await rig.launcher.commit("g.1", 1, LATE, FILES)
        await log_line(rig, work, "10.0.0.1:29500 1")
        assert (await rig.over("g.1")).exit_code == 0

    with_launcher(scenario)
