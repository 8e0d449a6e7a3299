"""The contract of every runner (process, tmux, screen, container), each with the real program."""

# ruff: noqa: ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.container import ContainerRunner, container_name
from tests.containers import a_root_file_system, why_no_containers, why_not_rootless
from tests.launcher_rig import NOBODY, Rig, is_alive, start_until, with_launcher
from tests.linux_accounts import LinuxAccount, some_accounts

# Container names are shared with other workers of the suite.
NAME = f"job-{os.getpid()}.1"
SESSION = f"gpujob_cpu_test_job-{os.getpid()}"


def needs(runner: str) -> str:
    if runner == "container":
        return why_no_containers()
    if runner == "rootless":
        return why_not_rootless()
    if runner in {"tmux", "screen"} and not shutil.which(runner):
        return f"{runner} is not installed"
    return ""


@pytest.fixture(scope="module")
def account() -> Iterator[LinuxAccount]:
    """The user of jobs whose container engine is rootless."""
    with some_accounts("boxed") as (boxed,):
        yield boxed


@pytest.fixture(params=["process", "terminal", "tmux", "screen", "container", "rootless"])
def runner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := needs(name):
        pytest.skip(reason)
    if name == "rootless":
        USERS[name] = request.getfixturevalue("account")
    return name


ONLY_ROOTLESS = "an engine of root runs no root file system for other users"
USERS: dict[str, LinuxAccount] = {}
"""Whose jobs they are, by runner, if not those of the test's own user."""


def user_of(runner: str) -> dict[str, Any]:
    """The fields of work that name this user."""
    if runner not in USERS:
        return {"uid": NOBODY, "gid": NOBODY, "user": "nobody"}
    user = USERS[runner]
    return {"uid": user.uid, "gid": user.gid, "user": user.name}


def work_of(rig: Rig, runner: str, script: str, **more: Any) -> Work:
    is_rootless = runner == "rootless"
    name = "container" if is_rootless else runner
    work = rig.work(NAME, "sh", "-c", script, runner=name, name="test", **more)
    if name != "container":
        return work
    root = a_root_file_system(rig.directory / "root")
    here = str(rig.directory)
    work = replace(work, image=f"rootfs:{root}", mounts=((here, here, False),))
    if is_rootless:
        for path in (root, *root.rglob("*")):
            os.chown(path, USERS[runner].uid, USERS[runner].gid, follow_symlinks=False)
        home = {**work.environment, "HOME": str(USERS[runner].home)}
        work = replace(work, engine_user="job", environment=home, **user_of(runner))
    return work


def test_exit_code_is_reported(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(work_of(rig, runner, "exit 7"))
        assert (over.exit_code, over.signal, over.ran, over.stopped_by) == (7, None, True, ""), over

    with_launcher(scenario)


def test_signal_is_reported(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(work_of(rig, runner, "kill -9 $$"))
        assert (over.exit_code, over.signal, over.ran) == (None, 9, True)

    with_launcher(scenario)


def test_job_has_its_environment_directory_and_log(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        script = 'echo "$COLOUR|$TGPU_ALLOCATION_ID|$TGPU_MEMBER"; pwd; echo wrong >&2'
        work = work_of(rig, runner, script)
        environment = {**work.environment, "COLOUR": "light blue = 1"}
        await rig.run(replace(work, environment=environment))
        assert rig.log(work).splitlines() == [
            f"light blue = 1|{NAME}|0",
            str(rig.directory),
            "wrong",
        ]
        assert Path(work.log_path).stat().st_mode & 0o777 == 0o600

    with_launcher(scenario)


def test_output_goes_to_file_named_by_user(runner: str) -> None:
    if runner == "container":
        pytest.skip(ONLY_ROOTLESS)

    async def scenario(rig: Rig) -> None:
        own = rig.directory / "own"
        own.mkdir()
        user = {"umask": 0o027, "log_of_user": True, "log_path": str(own / "out")}
        if os.geteuid() == 0:
            user.update(user_of(runner))
            os.chown(own, user["uid"], user["gid"])
        # Podman loses what a container writes before its monitor has accepted podman's connection.
        script = f"until grep -q hello {own}/out; do echo hello; sleep 0.1; done; echo wrong >&2"
        work = work_of(rig, runner, script, **user)
        assert (await rig.run(work)).exit_code == 0
        found = (own / "out").stat()
        first, *_, last = rig.log(work).splitlines()
        assert (first, last) == ("hello", "wrong")
        assert (found.st_uid, found.st_mode & 0o777) == (work.uid, 0o640)

    with_launcher(scenario)


def test_output_is_not_written_where_user_may_not_write(runner: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if runner == "container":
        pytest.skip(ONLY_ROOTLESS)

    async def scenario(rig: Rig) -> None:
        secret = rig.directory / "secret"
        secret.write_text("the last line", encoding="utf-8")
        secret.chmod(0o600)
        user = {**user_of(runner), "log_of_user": True}
        work = work_of(rig, runner, "echo hello", log_path=str(secret), **user)
        over = await rig.run(work)
        assert not over.ran
        assert "cannot open the output file" in over.detail
        assert "the last line" not in over.detail
        assert secret.read_text(encoding="utf-8") == "the last line"
        os.mkfifo(rig.directory / "pipe", 0o666)
        (rig.directory / "pipe").chmod(0o666)
        pipe = replace(work, allocation_id=NAME + "b", log_path=str(rig.directory / "pipe"))
        assert "cannot open the output file" in (await rig.run(pipe)).detail

    with_launcher(scenario)


def test_stop_sends_sigterm_first_and_writes_reason(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        script = (
            "trap 'cat \"$TGPU_STOP_FILE\"; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        )
        work = work_of(rig, runner, script, grace_ms=20_000)
        await start_until(rig, work, "ready")
        await rig.launcher.stop(NAME, 0, "preempted")
        over = await rig.over(NAME)
        assert (over.exit_code, over.signal, over.stopped_by) == (5, None, "preempted")
        assert rig.log(work).splitlines()[-1] == "preempted"

    with_launcher(scenario)


def test_job_that_ignores_stop_is_killed_with_detached_processes(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        tree = (
            "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo ready; exec sleep 1000' & "
            "while :; do sleep 0.05; done"
        )
        work = work_of(rig, runner, tree, grace_ms=300)
        await start_until(rig, work, "ready")
        sleepers = processes_with(rig, work)
        assert sleepers
        await rig.launcher.stop(NAME, 0, "cancelled")
        over = await rig.over(NAME)
        assert (over.exit_code, over.signal, over.stopped_by) == (None, 9, "cancelled")
        assert [pid for pid in sleepers if is_alive(pid)] == []

    with_launcher(scenario)


def test_leftover_processes_are_gone_when_job_is_over(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        done = rig.directory / "done"
        script = (
            f"(setsid setsid sleep 1000 >/dev/null 2>&1 &) ; (setsid sleep 1000 &) ; sleep 0.3; "
            f"echo ready; while ! test -e {done}; do sleep 0.02; done; exit 0"
        )
        work = work_of(rig, runner, script)
        await start_until(rig, work, "ready")
        left = processes_with(rig, work)
        assert len(left) >= 3
        done.touch()
        over = await rig.over(NAME)
        assert over.exit_code == 0
        assert [pid for pid in left if is_alive(pid)] == []

    with_launcher(scenario)


def test_missing_command_has_not_run(runner: str) -> None:
    if runner in {"container", "rootless"}:
        pytest.skip("an engine's init reports it as an exit code")

    async def scenario(rig: Rig) -> None:
        work = replace(work_of(rig, runner, ""), argv=("pyton", "train.py"))
        over = await rig.run(work)
        assert (over.ran, over.exit_code, over.signal) == (False, None, None)
        assert over.detail.startswith("cannot run 'pyton': no such file")

    with_launcher(scenario)


def test_script_runs_by_its_shebang(runner: str) -> None:
    async def scenario(rig: Rig) -> None:
        work = work_of(rig, runner, "")
        script = '#!/bin/sh -e\necho "$# $1"\nfalse\necho never\n'
        over = await rig.run(replace(work, argv=("one two",), script=script))
        assert over.exit_code == 1
        assert rig.log(work) == "1 one two\n"

    with_launcher(scenario)


def test_unobserved_exit_code_is_reported_as_unknown(runner: str) -> None:
    """The launcher is killed while the job runs; sessions and containers keep their result."""

    async def scenario(rig: Rig) -> None:
        done = rig.directory / "done"
        script = f"echo ready; while ! test -e {done}; do sleep 0.02; done; exit 4"
        work = work_of(rig, runner, script)
        await start_until(rig, work, "ready")
        await rig.kill_launcher()
        assert [item[2] for item in await rig.launcher.held()] == [None]
        done.touch()
        over = await rig.over(NAME)
        known = None if runner == "process" else 4
        assert (over.exit_code, over.signal, over.ran) == (known, None, True)

    with_launcher(scenario)


@pytest.mark.parametrize("multiplexer", ["tmux", "screen"])
def test_session_can_be_attached_and_typed_into(multiplexer: str) -> None:
    if reason := needs(multiplexer):
        pytest.skip(reason)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, multiplexer, 'echo ready; read word; echo "heard $word"; test -t 1')
        await start_until(rig, work, "ready")
        assert SESSION in await sessions(work)
        await type_into(work, "hello\n")
        over = await rig.over(NAME)
        assert over.exit_code == 0
        assert "heard hello" in rig.log(work)

    with_launcher(scenario)


def test_killing_session_kills_job() -> None:
    if reason := needs("tmux"):
        pytest.skip(reason)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, "tmux", "echo ready; sleep 1000")
        await start_until(rig, work, "ready")
        await command("tmux", "-S", f"{work.scratch_dir}/tmux.sock", "kill-server")
        over = await rig.over(NAME)
        assert (over.exit_code, over.signal, over.ran) == (None, 1, True)

    with_launcher(scenario)


def test_no_container_is_left_behind() -> None:
    if reason := why_no_containers():
        pytest.skip(reason)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, "container", "echo ready; sleep 1000", grace_ms=200)
        await start_until(rig, work, "ready")
        assert container_name(work) in await containers()
        await rig.launcher.stop(NAME, 0, "cancelled")
        await rig.over(NAME)
        assert container_name(work) not in await containers()

    with_launcher(scenario)


def processes_with(rig: Rig, work: Work) -> list[int]:
    """Every process that carries the job's name, found from outside."""
    mark = f"TGPU_ALLOCATION_ID={work.allocation_id}".encode()
    place = str(rig.directory).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0") and place in environment:
                found.append(int(entry.name))
    return found


async def command(*argv: str) -> str:
    def run() -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    return await asyncio.to_thread(run)


async def sessions(work: Work) -> str:
    if work.runner == "tmux":
        return await command("tmux", "-S", f"{work.scratch_dir}/tmux.sock", "list-sessions")
    return await command("env", f"SCREENDIR={work.scratch_dir}", "screen", "-ls")


async def type_into(work: Work, text: str) -> None:
    if work.runner == "tmux":
        socket = f"{work.scratch_dir}/tmux.sock"
        await command("tmux", "-S", socket, "send-keys", "-l", text)
        return
    directory = f"SCREENDIR={work.scratch_dir}"
    await command("env", directory, "screen", "-S", SESSION, "-p", "0", "-X", "stuff", text)


async def containers() -> str:
    engine = ContainerRunner()
    return await command(engine.engine, "ps", "--all", "--format", "{{.Names}}")
