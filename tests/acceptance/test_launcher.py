"""The launcher as its agent and its jobs see it: real processes, signals and kills."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC221, ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher.scratch import FREE_PREFIX, MAX_FREE
from gpu_scheduler.agent.launcher_client import Launcher, OrderRefused
from gpu_scheduler.agent.launcher_protocol import Over, Saved
from tests.launcher_rig import AS_ROOT, NOBODY, Rig, is_alive, log_line, start_until, with_launcher

root_only = pytest.mark.skipif(not AS_ROOT, reason="needs root")
LAUNCH = [sys.executable, "-I", "-m", "gpu_scheduler.agent.launcher", "--dir"]


# --- at most once -----------------------------------------------------------------------------


def test_repeated_start_runs_job_once() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "sh", "-c", "echo once")
        await rig.start_many([work, work])
        await rig.launcher.start(work)
        await rig.over("job-1.1")
        await rig.launcher.start(work)
        assert rig.log(work) == "once\n"
        assert len(await rig.launcher.held()) == 1

    with_launcher(scenario)


def test_jobs_start_after_fork_server_is_killed() -> None:
    async def scenario(rig: Rig) -> None:
        pid = rig.launcher.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        assert len(children) == 1
        assert (await rig.run(rig.work("job-1.1", "sh", "-c", "exit 4"))).exit_code == 4
        os.kill(int(children[0]), signal.SIGKILL)
        works = [rig.work(f"job-{n}.1", "sh", "-c", "exit 5") for n in range(2, 12)]
        await rig.start_many(works)
        for work in works:
            assert (await rig.over(work.allocation_id)).exit_code == 5
        assert rig.launcher.pid == pid

    with_launcher(scenario)


def test_gang_members_have_separate_records() -> None:
    async def scenario(rig: Rig) -> None:
        works = [
            replace(rig.work("job-1.1", "sh", "-c", "exit $TGPU_MEMBER"), member=member)
            for member in range(3)
        ]
        await rig.start_many(works)
        await rig.until(lambda: sum(isinstance(said, Over) for said in rig.said) == 3)
        codes = {said.member: said.exit_code for said in rig.said if isinstance(said, Over)}
        assert codes == {0: 0, 1: 1, 2: 2}

    with_launcher(scenario)


def test_job_stopped_before_its_start_order_never_runs() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "touch", "ran")
        await rig.launcher.stop("job-1.1", 0, "cancelled")
        over = await rig.run(work)
        assert (over.ran, over.stopped_by) == (False, "cancelled")
        assert not (rig.directory / "ran").exists()

    with_launcher(scenario)


def test_concurrent_start_and_stop_runs_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "touch", "ran")
        await asyncio.gather(rig.launcher.start(work), rig.launcher.stop("job-1.1", 0, "cancelled"))
        over = await rig.over("job-1.1")
        assert (over.ran, over.stopped_by) == (False, "cancelled")
        assert not (rig.directory / "ran").exists()

    with_launcher(scenario)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_job_is_lost_or_run_twice_under_repeated_launcher_kills(seed: int) -> None:
    """Jobs write a line at their start and one at their end; the files are the evidence."""

    async def scenario(rig: Rig) -> None:
        chance = random.Random(seed)
        witness = rig.directory / "witness"
        script = f'echo "begin $0" >> {witness}; sleep 0.0$1; echo "end $0" >> {witness}; exit 3'
        works = [
            rig.work(f"job-{n}.1", "sh", "-c", script, f"job-{n}.1", str(chance.randrange(1, 9)))
            for n in range(60)
        ]
        starts = [asyncio.create_task(rig.launcher.start(work)) for work in works]
        for _ in range(4):
            await asyncio.sleep(chance.random() * 0.15)
            await rig.kill_launcher()
        await asyncio.gather(*starts)
        overs = {work.allocation_id: await rig.over(work.allocation_id) for work in works}
        lines = Counter(witness.read_text(encoding="utf-8").splitlines())
        assert [line for line, count in lines.items() if count > 1] == []
        for name, over in overs.items():
            assert over.signal is None
            assert over.exit_code in ({3, None} if over.ran else {None})
            if not over.ran:
                assert f"begin {name}" not in lines
            if over.exit_code == 3:
                assert f"end {name}" in lines
            assert lines[f"begin {name}"] == lines[f"end {name}"], "killed though it was running"

    with_launcher(scenario)


def test_launcher_runs_three_hundred_jobs_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        works = [rig.work(f"job-{n}.1", "sh", "-c", f"exit {n % 7}") for n in range(300)]
        await rig.start_many(works)
        await rig.until(lambda: sum(isinstance(said, Over) for said in rig.said) == 300, 60)
        found = {said.allocation_id: said.exit_code for said in rig.said if isinstance(said, Over)}
        assert found == {f"job-{n}.1": n % 7 for n in range(300)}
        await asyncio.gather(*(rig.launcher.forget(work.allocation_id, 0) for work in works))
        assert await rig.launcher.held() == []
        await _only_spares(rig)

    with_launcher(scenario)


async def _only_spares(rig: Rig) -> None:
    """Soon only a few empty pooled directories are left."""
    async with asyncio.timeout(20):
        while True:
            left = list((rig.directory / "scratch").iterdir())
            if len(left) <= MAX_FREE and all(path.name.startswith(FREE_PREFIX) for path in left):
                break
            await asyncio.sleep(0.05)
    assert not [inside for path in left for inside in path.iterdir()]


# --- failed starts --------------------------------------------------------------------------


def test_failed_start_reports_its_cause() -> None:
    async def scenario(rig: Rig) -> None:
        plain = rig.directory / "plain.sh"
        plain.write_text("echo hello\n", encoding="utf-8")
        cases = {
            "cannot run 'pyton': no such file": {"argv": ("pyton", "train.py")},
            "permission denied": {"argv": ("./plain.sh",)},
            "cannot enter the working directory '/nowhere'": {"workdir": "/nowhere"},
            "there is no runner called 'rocket'": {"runner": "rocket"},
            "nothing to run": {"argv": ()},
            "cannot open the output file": {"log_path": "/nowhere/x.log", "log_of_user": True},
        }
        for number, (reason, change) in enumerate(cases.items()):
            over = await rig.run(replace(rig.work(f"job-{number}.1", "true"), **change))
            assert (over.ran, over.exit_code, over.signal) == (False, None, None)
            assert reason in over.detail

    with_launcher(scenario)


@root_only
@pytest.mark.parametrize("uid", [-5, 2**33])
def test_invalid_user_is_rejected(uid: int) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(rig.work("job-1.1", "true", uid=uid, scratch_dir=""))
        assert not over.ran
        assert "cannot run as user" in over.detail

    with_launcher(scenario)


@root_only
def test_job_runs_as_its_user_and_owns_its_files() -> None:
    async def scenario(rig: Rig) -> None:
        script = 'id -u; id -G; umask; touch "$TGPU_CHECKPOINT_FILE" && echo own'
        work = rig.work("job-1.1", "sh", "-c", script, uid=NOBODY, gid=NOBODY, user="nobody")
        await rig.run(replace(work, umask=0o077))
        assert rig.log(work).splitlines() == ["65534", "65534", "0077", "own"]
        scratch = Path(work.scratch_dir).stat()
        assert (scratch.st_uid, scratch.st_mode & 0o777) == (NOBODY, 0o700)

    with_launcher(scenario)


@root_only
def test_pooled_directory_serves_one_user_and_is_clean() -> None:
    async def scenario(rig: Rig) -> None:
        leave = 'echo secret > "$TGPU_CHECKPOINT_FILE"; chmod 777 "${TGPU_CHECKPOINT_FILE%/*}"'
        first = rig.work("job-1.1", "sh", "-c", leave, uid=NOBODY, gid=NOBODY, user="nobody")
        await rig.run(first)
        number = Path(first.scratch_dir).stat().st_ino
        await rig.launcher.forget("job-1.1", 0)
        ours = rig.work("job-2.1", "true")
        await rig.run(ours)
        assert Path(ours.scratch_dir).stat().st_ino != number
        look = 'ls -A "${TGPU_CHECKPOINT_FILE%/*}"'
        theirs = rig.work("job-3.1", "sh", "-c", look, uid=NOBODY, gid=NOBODY, user="nobody")
        await rig.run(theirs)
        found = Path(theirs.scratch_dir).stat()
        assert (found.st_ino, found.st_uid, found.st_mode & 0o777) == (number, NOBODY, 0o700)
        assert rig.log(theirs) == ""

    with_launcher(scenario)


def test_directory_with_leftover_files_is_not_reused() -> None:
    async def scenario(rig: Rig) -> None:
        leave = 'touch "${TGPU_CHECKPOINT_FILE%/*}/mine"'
        work = rig.work("job-1.1", "sh", "-c", leave)
        await rig.run(work)
        number = Path(work.scratch_dir).stat().st_ino
        await rig.launcher.forget("job-1.1", 0)
        await _only_spares(rig)
        assert number not in {path.stat().st_ino for path in (rig.directory / "scratch").iterdir()}

    with_launcher(scenario)


@pytest.mark.parametrize("dies", [False, True], ids=["leaves", "dies"])
def test_job_directories_are_removed_after_launcher_ended_early(
    dies: bool,
) -> None:
    async def scenario(rig: Rig) -> None:
        leave = 'touch "${TGPU_CHECKPOINT_FILE%/*}/mine"'
        await rig.run(rig.work("job-1.1", "sh", "-c", leave))
        await rig.launcher.forget("job-1.1", 0)
        if dies:
            await rig.kill_launcher()
            await rig.run(rig.work("job-2.1", "true"))
            await rig.launcher.forget("job-2.1", 0)
            await _only_spares(rig)
            return
        await rig.hang_up()
        await rig.launcher.leave()
        async with asyncio.timeout(20):
            while list((rig.directory / "scratch").iterdir()):
                await asyncio.sleep(0.01)
        await rig.open()

    with_launcher(scenario)


def test_job_starts_inside_its_cgroup() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.run(work := rig.work("job-1.1", "cat", "/proc/self/cgroup"))
        if rig.launcher.capabilities["tracking"] == "none":
            pytest.skip("this host has no control groups")
        assert "/job-1.1.0\n" in rig.log(work)

    with_launcher(scenario)


@root_only
def test_output_file_is_opened_with_permissions_of_user() -> None:
    async def scenario(rig: Rig) -> None:
        own = rig.directory / "own"
        own.mkdir()
        os.chown(own, NOBODY, NOBODY)
        (own / "link").symlink_to("/etc/hostname-of-root")
        user = {"uid": NOBODY, "gid": NOBODY, "user": "nobody", "log_of_user": True}
        good = rig.work("job-1.1", "echo", "hello", log_path=str(own / "out"), **user)
        assert (await rig.run(good)).exit_code == 0
        assert ((own / "out").read_text(encoding="utf-8"), (own / "out").stat().st_uid) == (
            "hello\n",
            NOBODY,
        )
        bad = rig.work("job-2.1", "echo", "hello", log_path=str(own / "link"), **user)
        assert not (await rig.run(bad)).ran
        assert not Path("/etc/hostname-of-root").exists()

    with_launcher(scenario)


# --- time -------------------------------------------------------------------------------------


def test_time_limit_warns_terminates_and_kills_without_agent() -> None:
    async def scenario(rig: Rig) -> None:
        script = (
            'trap \'echo "warned: $(cat $TGPU_STOP_FILE)"\' USR1; trap "echo asked" TERM; '
            "echo ready; while :; do sleep 0.02; done"
        )
        work = rig.work("job-1.1", "sh", "-c", script, limit_ms=4_000, grace_ms=1_500)
        await rig.launcher.start(replace(work, warn_signal="USR1", warn_before_ms=1_500))
        await rig.hang_up()
        await rig.launcher.close()
        pid = rig.launcher.pid
        await log_line(rig, work, "asked")
        assert is_alive(pid)
        await rig.open()
        over = await rig.over("job-1.1")
        assert (over.signal, over.stopped_by) == (9, "timeout")
        assert over.run_ms >= 5_400, "the limit, and then the grace"
        lines = [line for line in rig.log(work).splitlines() if line[:4] in {"warn", "aske"}]
        assert lines == ["warned: timeout", "asked"]

    with_launcher(scenario)


def test_preempted_job_is_warned_first() -> None:
    async def scenario(rig: Rig) -> None:
        script = "trap 'cat $TGPU_STOP_FILE; exit 9' USR2; echo ready; while :; do sleep 0.02; done"
        work = rig.work("job-1.1", "sh", "-c", script, warn_signal="SIGUSR2", warn_before_ms=10_000)
        await rig.launcher.start(replace(work, grace_ms=10_000))
        await log_line(rig, work, "ready")
        await rig.launcher.stop("job-1.1", 0, "preempted")
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.stopped_by) == (9, "preempted")

    with_launcher(scenario)


def test_stop_warning_is_written_to_job_log() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "sh", "-c", "echo began; sleep 300")
        await start_until(rig, work, "began\n")
        await rig.launcher.warn("job-1.1", 0, "it uses\ntoo much")
        await rig.launcher.warn("job-9.1", 0, "nobody hears this")
        await log_line(rig, work, "too much\n")
        assert rig.log(work) == "began\ntgpu: it uses too much\n"
        await rig.launcher.stop("job-1.1", 0, "gpu_memory", grace_ms=0)
        await rig.over("job-1.1")

    with_launcher(scenario)


@root_only
def test_stop_warning_in_user_output_file_is_written_as_user() -> None:
    async def scenario(rig: Rig) -> None:
        place = rig.directory / "out"
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        secret = rig.directory / "secret"
        secret.write_text("")
        secret.chmod(0o600)
        named = place / "log"
        work = rig.work("job-1.1", "sh", "-c", "echo began; sleep 300", uid=NOBODY, gid=NOBODY)
        work = replace(work, log_path=str(named), log_of_user=True)
        await start_until(rig, work, "began\n")
        await rig.launcher.warn("job-1.1", 0, "first")
        await log_line(rig, work, "began\ntgpu: first\n")
        named.unlink()
        named.symlink_to(secret)
        await rig.launcher.warn("job-1.1", 0, "second")
        await rig.launcher.stop("job-1.1", 0, "gpu_memory", grace_ms=0)
        await rig.over("job-1.1")
        assert secret.read_text() == ""

    with_launcher(scenario)


def test_helper_reports_result_and_its_background_process_is_ignored() -> None:
    async def scenario(rig: Rig) -> None:
        who = (os.geteuid(), os.getegid(), "")
        plain = {"PATH": "/usr/bin:/bin"}
        left = "setsid sleep 300 >/dev/null 2>&1 & echo $! > left"
        place = str(rig.directory)
        await rig.launcher.run_helper(("sh", "-c", f"cd {place}; {left}"), plain, who)
        with pytest.raises(OrderRefused, match="exit code 7: no"):
            await rig.launcher.run_helper(("sh", "-c", "echo no; exit 7"), plain, who)
        await rig.run(rig.work("job-1.1", "true"))
        pid = int((rig.directory / "left").read_text())
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)

    with_launcher(scenario)


def test_second_stop_can_shorten_grace_period() -> None:
    async def scenario(rig: Rig) -> None:
        script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
        work = rig.work("job-1.1", "sh", "-c", script, grace_ms=600_000)
        await start_until(rig, work, "ready")
        await rig.launcher.stop("job-1.1", 0, "preempted")
        await rig.launcher.stop("job-1.1", 0, "cancelled", 0)
        over = await rig.over("job-1.1")
        assert (over.signal, over.stopped_by) == (9, "preempted")

    with_launcher(scenario)


def test_suspended_process_receives_stop() -> None:
    async def scenario(rig: Rig) -> None:
        script = "trap 'exit 6' TERM; echo ready; kill -STOP $$; while :; do sleep 0.02; done"
        work = rig.work("job-1.1", "sh", "-c", script, grace_ms=20_000)
        await start_until(rig, work, "ready")
        await rig.launcher.stop("job-1.1", 0, "cancelled")
        assert (await rig.over("job-1.1")).exit_code == 6

    with_launcher(scenario)


@pytest.mark.slow
def test_time_limit_holds_after_launcher_death() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(rig.work("job-1.1", "sleep", "1000", limit_ms=4_000))
        await rig.began("job-1.1")
        await rig.kill_launcher()
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert over.stopped_by == "timeout"

    with_launcher(scenario)


# --- hooks, logs, checkpoints -----------------------------------------------------------------


def test_prolog_runs_before_job_and_epilog_after() -> None:
    async def scenario(rig: Rig) -> None:
        told = rig.directory / "told"
        note = f'echo "$0 $TGPU_ALLOCATION_ID $TGPU_EXIT_CODE" >> {told}'
        hooks = {
            "prolog": ("sh", "-c", note, "before"),
            "epilog": ("sh", "-c", note, "after"),
        }
        await rig.run(rig.work("job-1.1", "sh", "-c", f"echo job >> {told}; exit 2", **hooks))
        assert told.read_text(encoding="utf-8").splitlines() == [
            "before job-1.1 ",
            "job",
            "after job-1.1 2",
        ]

    with_launcher(scenario)


def test_failed_or_hanging_prolog_prevents_job() -> None:
    async def scenario(rig: Rig) -> None:
        failing = rig.work("job-1.1", "touch", "ran", prolog=("sh", "-c", "echo no disk; exit 3"))
        hanging = rig.work("job-2.1", "touch", "ran", prolog=("sleep", "1000"), hook_timeout_ms=200)
        await rig.start_many([failing, hanging])
        first, second = await rig.over("job-1.1"), await rig.over("job-2.1")
        assert first.detail == "the prolog 'sh' failed: exit code 3: no disk"
        assert second.detail == "the prolog 'sleep' failed: it took longer than 0.2 s"
        assert first.prolog_failed == "exit code 3: no disk"
        assert second.prolog_failed == "it took longer than 0.2 s"
        assert (first.ran, second.ran) == (False, False)
        assert not (rig.directory / "ran").exists()

    with_launcher(scenario)


def test_stop_during_prolog_ends_prolog() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(rig.work("job-1.1", "touch", "ran", prolog=("sleep", "1000")))
        await rig.launcher.stop("job-1.1", 0, "cancelled")
        over = await rig.over("job-1.1")
        assert (over.ran, over.stopped_by) == (False, "cancelled")
        assert not over.prolog_failed

    with_launcher(scenario)


def test_stop_during_prolog_ends_children_of_prolog() -> None:
    async def scenario(rig: Rig) -> None:
        place = rig.directory / "child"
        script = f"sleep 1000 & echo $! > {place}.new; mv {place}.new {place}; wait"
        await rig.launcher.start(rig.work("job-1.1", "true", prolog=("sh", "-c", script)))
        await there(place)
        await rig.launcher.stop("job-1.1", 0, "cancelled")
        await rig.over("job-1.1")
        async with asyncio.timeout(20):
            while is_alive(int(place.read_text())):
                await asyncio.sleep(0.01)

    with_launcher(scenario)


def test_epilog_failure_is_reported_apart_from_job_result() -> None:
    async def scenario(rig: Rig) -> None:
        long = "echo $(seq 1000); exit 4"
        over = await rig.run(rig.work("job-1.1", "true", epilog=("sh", "-c", long)))
        assert (over.exit_code, over.ran, over.prolog_failed) == (0, True, "")
        assert over.epilog_failed.startswith("exit code 4: 1 2 3")
        assert len(over.epilog_failed) == 300

    with_launcher(scenario)


def test_job_can_be_retried_after_launcher_died_in_prolog() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(rig.work("job-1.1", "touch", "ran", prolog=("sleep", "1000")))
        await rig.kill_launcher()
        over = await rig.over("job-1.1")
        assert (over.ran, over.stopped_by) == (False, "not_begun")

    with_launcher(scenario)


async def there(path: Path, seconds: float = 30) -> None:
    """Wait for a file."""
    async with asyncio.timeout(seconds):
        while not path.exists():
            await asyncio.sleep(0.01)


def test_log_is_capped_and_rotated_while_job_writes() -> None:
    async def scenario(rig: Rig) -> None:
        script = (
            "until [ -e go ]; do sleep 0.02; done; "
            "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; touch written; "
            "until [ -e rotated ]; do sleep 0.02; done; echo last"
        )
        work = rig.work("job-1.1", "sh", "-c", script, log_max_bytes=4_000, log_files=2)
        await rig.launcher.start(work)
        await rig.began("job-1.1")
        os.kill(rig.launcher.pid, signal.SIGSTOP)  # the launcher looks after the last write
        try:
            (rig.directory / "go").touch()
            await there(rig.directory / "written")
        finally:
            os.kill(rig.launcher.pid, signal.SIGCONT)
        await there(Path(work.log_path + ".1"))
        (rig.directory / "rotated").touch()
        await rig.over("job-1.1")
        assert rig.log(work) == "last\n"
        old = Path(work.log_path + ".1").read_text(encoding="utf-8")
        assert old.endswith("2999\n3000\n")
        # A log that exceeds twice its size between two checks keeps its newest part.
        assert len(old) == 2 * 4_000

    with_launcher(scenario)


def test_touched_checkpoint_file_is_reported() -> None:
    async def scenario(rig: Rig) -> None:
        script = 'touch "$TGPU_CHECKPOINT_FILE"; sleep 1000'
        began = time.time_ns() // 1_000_000
        await rig.launcher.start(rig.work("job-1.1", "sh", "-c", script))
        saved = await rig.report(Saved, "job-1.1")
        assert saved.at_ms >= began - 1000

    with_launcher(scenario)


def test_checkpoint_saved_on_stop_is_reported_before_end() -> None:
    async def scenario(rig: Rig) -> None:
        save = """trap 'touch "$TGPU_CHECKPOINT_FILE"; exit 3' TERM"""
        script = f"{save}; echo up; while :; do sleep 0.05; done"
        work = rig.work("job-1.1", "sh", "-c", script)
        await rig.launcher.start(work)
        await log_line(rig, work, "up")
        await rig.launcher.stop("job-1.1", 0, "preempted")
        await rig.over("job-1.1")
        kinds = [type(report) for report in rig.said]
        assert kinds.index(Saved) < kinds.index(Over)

    with_launcher(scenario)


# --- limits -----------------------------------------------------------------------------------


def needs_groups(rig: Rig, kind: str) -> None:
    if not rig.launcher.capabilities[kind].startswith(("cgroup", "ebpf")):
        pytest.skip(f"this host has no control group for {kind}")


def test_job_over_memory_limit_is_killed_and_reported_as_oom() -> None:
    async def scenario(rig: Rig) -> None:
        needs_groups(rig, "memory")
        code = "x = bytearray(200 << 20); print(len(x))"
        over = await rig.run(rig.work("job-1.1", sys.executable, "-c", code, memory_mb=64))
        assert over.signal == signal.SIGKILL
        assert over.detail == "killed by the kernel: used more than its 64 MB"

    with_launcher(scenario)


def test_job_cannot_exceed_process_limit() -> None:
    async def scenario(rig: Rig) -> None:
        needs_groups(rig, "processes")
        script = "for i in 1 2 3 4 5 6 7 8; do sleep 60 & done; echo all"
        work = rig.work("job-1.1", "sh", "-c", script, max_processes=5)
        over = await rig.run(work)
        assert over.exit_code == 2
        assert "all" not in rig.log(work)

    with_launcher(scenario)


@root_only
def test_devices_of_other_jobs_are_inaccessible() -> None:
    async def scenario(rig: Rig) -> None:
        needs_groups(rig, "devices")
        nodes = {name: rig.directory / name for name in ("mine", "others")}
        os.mknod(nodes["mine"], 0o666 | 0o020000, os.makedev(1, 5))
        os.mknod(nodes["others"], 0o666 | 0o020000, os.makedev(1, 3))
        for node in nodes.values():
            node.chmod(0o666)
        script = "head -c 1 mine | wc -c; cat others && echo open || echo closed"
        closed = (str(nodes["others"]), "/dev/nvidia-that-is-missing")
        work = rig.work("job-1.1", "sh", "-c", script, closed_devices=closed)
        await rig.run(replace(work, uid=NOBODY, gid=NOBODY, user="nobody"))
        assert rig.log(work).splitlines()[0] == "1"
        assert rig.log(work).splitlines()[-1] == "closed"

    with_launcher(scenario)


def test_job_stays_on_its_cpus() -> None:
    async def scenario(rig: Rig) -> None:
        last = max(os.sched_getaffinity(0))
        code = "import os; print(os.sched_getaffinity(0))"
        work = rig.work("job-1.1", sys.executable, "-c", code, cpus=(last, 4096))
        await rig.run(work)
        assert rig.log(work) == f"{{{last}}}\n"

    with_launcher(scenario)


# --- restarts ------------------------------------------------------------------------------


def test_end_is_reported_again_until_forgotten() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.run(rig.work("job-1.1", "sh", "-c", "exit 5"))
        for _ in range(2):
            rig.said.clear()
            await rig.kill_launcher()
            assert (await rig.over("job-1.1")).exit_code == 5
        await rig.launcher.forget("job-1.1", 0)
        await rig.launcher.forget("job-1.1", 0)
        await rig.run(rig.work("job-2.1", "true"))
        await rig.kill_launcher()
        assert [item[0] for item in await rig.launcher.held()] == ["job-2.1"]
        assert (rig.directory / "logs" / "job-1.1.log").exists()

    with_launcher(scenario)


def test_running_job_cannot_be_forgotten() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(rig.work("job-1.1", "sleep", "1000"))
        with pytest.raises(OrderRefused, match="is not over"):
            await rig.launcher.forget("job-1.1", 0)

    with_launcher(scenario)


def test_restarted_launcher_finds_running_job_and_can_stop_it_with_its_daemons() -> None:
    async def scenario(rig: Rig) -> None:
        script = "(setsid sh -c 'echo $$ >> pids; exec sleep 1000' &); echo $$ >> pids; sleep 1000"
        await rig.launcher.start(rig.work("job-1.1", "sh", "-c", script))
        await rig.began("job-1.1")
        pids = rig.directory / "pids"
        async with asyncio.timeout(30):
            while not pids.exists() or len(pids.read_text(encoding="ascii").split()) < 2:
                await asyncio.sleep(0.01)
        await rig.kill_launcher()
        await rig.kill_launcher()
        found = [int(pid) for pid in pids.read_text(encoding="ascii").split()]
        assert all(is_alive(pid) for pid in found)
        await rig.launcher.stop("job-1.1", 0, "cancelled")
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert over.detail == "the launcher that began it had died: exit code unknown"
        assert not any(is_alive(pid) for pid in found)

    with_launcher(scenario)


async def with_journal_changed(rig: Rig, change: Callable[[bytes], bytes]) -> None:
    """Kill the launcher, change its journal, and let the client start another."""
    journal = rig.directory / "agent" / "attempts" / "journal"
    pid = rig.launcher.pid
    os.kill(pid, signal.SIGSTOP)
    journal.write_bytes(change(journal.read_bytes().rstrip(b"\0")))
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while rig.launcher.pid == pid:
            await asyncio.sleep(0.01)


def test_no_job_is_considered_running_after_reboot() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.launcher.start(rig.work("job-1.1", "sh", "-c", "echo $$ > pid; sleep 1000"))
        began = await rig.began("job-1.1")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        await with_journal_changed(rig, lambda data: other_boot(data, boot))
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert over.detail == "the machine was restarted: exit code unknown"
        assert not is_alive(began.pid)

    with_launcher(scenario)


@pytest.mark.parametrize("damage", ["middle", "garbage", "torn"])
def test_launcher_survives_damaged_journal_without_running_twice(damage: str) -> None:
    async def scenario(rig: Rig) -> None:
        for number in (1, 2):
            wait = "until test -e go; do sleep 0.05; done; echo ran"
            await rig.launcher.start(rig.work(f"job-{number}.1", "sh", "-c", wait))
            await rig.began(f"job-{number}.1")
        changes = {
            "middle": lambda data: data.replace(b'"boot":', b'"b##t":', 1),
            "garbage": lambda data: os.urandom(300) + b"\n\0\0\n" + data,
            "torn": lambda data: data[:-40],
        }
        await with_journal_changed(rig, changes[damage])
        (rig.directory / "go").touch()
        for number in (1, 2):
            over = await rig.over(f"job-{number}.1")
            # An incomplete last record was never acknowledged. Without control groups the
            # launcher has no other trace of the command.
            is_unknown = damage == "torn" and number == 2
            is_tracked = rig.launcher.capabilities["tracking"] != "none"
            ran = is_tracked or not is_unknown
            assert (over.exit_code, over.signal, over.ran) == (None, None, ran)
            await rig.launcher.start(rig.work(f"job-{number}.1", "echo", "twice"))
        assert (rig.directory / "agent" / "attempts" / "journal.bad-1").exists()
        for number in (1, 2):
            assert rig.log(rig.work(f"job-{number}.1")) == "ran\n"

    with_launcher(scenario)


@root_only
def test_launcher_on_full_disk_starts_nothing_and_still_reports_ends() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.hang_up()
        await rig.launcher.leave()
        disk = rig.directory / "agent"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False
        )
        if mounted.returncode:
            pytest.skip("cannot mount a small file system here")
        try:
            await rig.open()
            await rig.launcher.start(rig.work("job-1.1", "sh", "-c", "sleep 0.5; exit 4"))
            await rig.began("job-1.1")
            with pytest.raises(OSError, match="No space"):
                (disk / "filler").write_bytes(b"x" * (1 << 20))
            padding = "x" * 100_000
            over = await rig.run(rig.work("job-2.1", "touch", "ran", name=padding))
            assert not over.ran
            assert "No space left on device" in over.detail
            assert not (rig.directory / "ran").exists()
            assert (await rig.over("job-1.1")).exit_code == 4
            (disk / "filler").unlink()
            assert (await rig.run(rig.work("job-3.1", "true"))).exit_code == 0
            # Records that could not be written are written when there is room again.
            journal = disk / "attempts" / "journal"
            async with asyncio.timeout(30):
                while b'"exit_code":4' not in journal.read_bytes().replace(b" ", b""):
                    await asyncio.sleep(0.05)
            await rig.kill_launcher()
            kept = {name: over for name, _, over in await rig.launcher.held()}
            assert kept["job-1.1"] is not None
            assert kept["job-1.1"].exit_code == 4
        finally:
            await rig.close()
            subprocess.run(["umount", "-l", disk], check=False)
            await rig.open()

    with_launcher(scenario)


# --- access and size -------------------------------------------------------------------

AS_NOBODY = """
import os, sys
from gpu_scheduler.agent.launcher import service
from gpu_scheduler.agent.launcher.__main__ import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["--dir", sys.argv[1]]))
"""


@pytest.mark.slow
@root_only
def test_unprivileged_launcher_finds_detached_processes_and_rejects_other_users() -> None:
    """Without cgroups, detached processes are found by ancestry, and other users are rejected."""

    async def scenario(rig: Rig) -> None:
        await rig.hang_up()
        await rig.launcher.leave()
        for name in ("agent", "own"):
            (rig.directory / name).mkdir(exist_ok=True)
        subprocess.run(["chown", "-R", "65534:65534", rig.directory], check=True)
        place = str(rig.directory / "agent")
        process = subprocess.Popen([sys.executable, "-I", "-c", AS_NOBODY, place])
        try:
            async with asyncio.timeout(20):
                while not (rig.directory / "agent" / "launcher.sock").is_socket():
                    await asyncio.sleep(0.02)
            await rig.open()
            assert rig.launcher.capabilities["tracking"] == "none"
            own = {"uid": NOBODY, "gid": NOBODY}
            script = (
                "(setsid setsid sh -c 'trap \"\" TERM; echo $$ >> own/pids; exec sleep 1000' &); "
                "env -i setsid sleep 1000 & echo $! >> own/pids; "
                "until [ $(wc -l < own/pids) = 2 ]; do sleep 0.05; done; exit 2"
            )
            over = await rig.run(rig.work("job-1.1", "sh", "-c", script, grace_ms=500, **own))
            assert over.exit_code == 2
            pids = (rig.directory / "own" / "pids").read_text(encoding="ascii").split()
            assert len(pids) == 2
            assert not any(is_alive(int(pid)) for pid in pids)
            script = "trap '' TERM; sleep 1000 & sleep 1000"
            work = rig.work("job-2.1", "sh", "-c", script, limit_ms=3_000, grace_ms=200, **own)
            assert (await rig.run(work)).signal == 9
            elsewhere = rig.work("job-5.1", "id", "-g", uid=NOBODY, gid=1, user="nobody")
            assert (await rig.run(elsewhere)).exit_code == 0
            assert rig.log(elsewhere) == "65534\n"
            refused = await rig.run(rig.work("job-3.1", "true", uid=0))
            assert "cannot run as uid 0: the launcher runs as uid 65534" in refused.detail
            code = "x = bytearray(200 << 20)"
            work = rig.work("job-4.1", "/usr/bin/python3", "-c", code, memory_mb=64, **own)
            assert (await rig.run(work)).exit_code == 1
            assert "MemoryError" in rig.log(work)
            await rig.close()
        finally:
            process.wait(60)
            subprocess.run(["chown", "-R", "0:0", rig.directory], check=True)
            await rig.open()

    with_launcher(scenario)


@root_only
def test_launcher_socket_rejects_other_users() -> None:
    async def scenario(rig: Rig) -> None:
        path = rig.directory / "agent" / "launcher.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)
        (rig.directory / "agent").chmod(0o755)
        code = (
            "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.setuid(65534);"
            's.connect(sys.argv[1]); s.send(b\'{"do":"held"}\\n\'); print(s.recv(100))'
        )
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-I", "-c", code, path], capture_output=True, text=True
        )
        assert "held" not in done.stdout

    with_launcher(scenario)


def test_one_launcher_serves_one_directory() -> None:
    async def scenario(rig: Rig) -> None:
        place = rig.directory / "agent"
        done = await asyncio.to_thread(
            subprocess.run, [*LAUNCH, place], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (3, f"another launcher serves {place}\n")
        other = await Launcher.connect(place)
        assert await other.held() == []
        assert other.pid == rig.launcher.pid
        await other.close()

    with_launcher(scenario)


def test_invalid_lines_do_not_harm_launcher() -> None:
    async def scenario(rig: Rig) -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(rig.directory / "agent" / "launcher.sock"))
            for text in (b"\xff\xfe\n", b"[]\n", b'{"do":"dance"}\n', b'{"do":"start","work":7}\n'):
                caller.sendall(text)
                answer = await asyncio.to_thread(caller.recv, 65536)
                assert "error" in json.loads(answer)
        assert (await rig.run(rig.work("job-1.1", "true"))).exit_code == 0

    with_launcher(scenario)


@pytest.mark.skipif("coverage" in sys.modules, reason="what measures coverage is larger itself")
def test_launcher_uses_less_than_20_mb() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.run(rig.work("job-1.1", "true"))
        pages = Path(f"/proc/{rig.launcher.pid}/statm").read_text(encoding="ascii").split()[1]
        assert int(pages) * resource.getpagesize() < 20 << 20

    with_launcher(scenario)


def other_boot(data: bytes, boot: str) -> bytes:
    """The same journal as if written before a reboot."""
    lines = []
    for text in data.splitlines():
        body = text.partition(b" ")[2].replace(boot.encode(), b"another-boot")
        lines.append(b"%08x %b\n" % (zlib.crc32(body), body))
    return b"".join(lines)


def test_variables_of_users_reach_no_hook(tmp_path: Path) -> None:
    """One that is too long made the prolog fail, which drains the node."""
    seen = tmp_path / "seen"
    long = {"TGPU_X": "a" * (128 << 10), "TGPU_SERVER": "/mine", "TGPU_ATTEMPT": "1"}

    async def scenario(rig: Rig) -> None:
        prolog = ("sh", "-c", f"env >{seen}")
        over = await rig.run(rig.work("job-1.1", "true", environment=long, prolog=prolog))
        assert (over.prolog_failed, over.ran) == ("", False)
        assert "too long" in over.detail
        names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
        assert "TGPU_ATTEMPT" in names
        assert not {"TGPU_X", "TGPU_SERVER"} & names

    with_launcher(scenario)
