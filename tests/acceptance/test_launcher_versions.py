"""An upgrade with running jobs: a current agent and a launcher without a version message."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC240
# These tests poll files; their event loop has nothing else to do.

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_scheduler import __version__
from gpu_scheduler.agent.launcher_client import Launcher, OrderRefused
from gpu_scheduler.agent.launcher_protocol import (
    PROTOCOL_1_FIELDS,
    Work,
    WorkDevice,
    decode_work,
    encode_work,
    split_known_fields,
)
from tests.launcher_rig import Rig

OLD = Path(__file__).parents[1] / "fixtures" / "launcher" / "0.1.0-protocol-1.tar.xz"
RUN = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
sys.argv = ["launcher", "--dir", sys.argv[2]]
runpy.run_module("gpu_scheduler.agent.launcher", run_name="__main__", alter_sys=True)
"""


def extract_old_launcher(directory: Path) -> None:
    directory.mkdir()
    subprocess.run(["tar", "-xJf", str(OLD), "-C", str(directory)], check=True)


@asynccontextmanager
async def an_old_launcher() -> AsyncIterator[Rig]:
    """A rig whose first launcher is an old one and whose client is current."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    extract_old_launcher(directory / "old")
    rig = Rig(directory)
    agent = directory / "agent"
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", RUN, str(directory / "old"), str(agent)]
    )
    try:
        async with asyncio.timeout(20):
            while not (agent / "launcher.sock").exists():
                await asyncio.sleep(0.02)
        await rig.open()
        assert rig.launcher.pid == process.pid
        yield rig
    finally:
        await rig.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def test_new_agent_follows_job_of_old_launcher_to_its_end() -> None:
    async def scenario() -> None:
        async with an_old_launcher() as rig:
            old = rig.launcher.pid
            assert rig.launcher.is_outdated
            assert not rig.launcher.keeps_leases
            await rig.launcher.start(rig.work("job-1.1", "sh", "-c", "read x < gate; exit 7"))
            (rig.directory / "gate").touch()
            assert (await rig.over("job-1.1")).exit_code == 7
            assert not await rig.launcher.replace_if_idle(), "the end is not known elsewhere yet"
            await rig.launcher.forget("job-1.1", 0)

            assert await rig.launcher.replace_if_idle()
            assert rig.launcher.pid != old
            assert (rig.launcher.version, rig.launcher.keeps_leases) == (__version__, True)
            await rig.launcher.start(rig.work("job-2.1", "sh", "-c", "exit 8"))
            assert (await rig.over("job-2.1")).exit_code == 8

    asyncio.run(scenario())


def test_new_agent_starts_jobs_with_busy_old_launcher() -> None:
    async def scenario() -> None:
        async with an_old_launcher() as rig:
            old = rig.launcher.pid
            await rig.launcher.start(rig.work("job-1.1", "sleep", "600"))
            await rig.began("job-1.1")
            assert not await rig.launcher.replace_if_idle()
            assert (await rig.run(rig.work("job-2.1", "sh", "-c", "exit 5"))).exit_code == 5
            await rig.launcher.renew(1)
            assert rig.launcher.pid == old
            with pytest.raises(OrderRefused, match="does not know lease_ms, leased_ms; it is repl"):
                await rig.launcher.start(rig.work("job-3.1", "true", lease_ms=1_000, leased_ms=5))

    asyncio.run(scenario())


def test_orders_during_launcher_replacement_go_to_new_launcher() -> None:
    async def scenario() -> None:
        async with an_old_launcher() as rig:
            works = [rig.work(f"job-{n}.1", "sh", "-c", f"exit {n}") for n in range(1, 9)]
            replacing = asyncio.create_task(rig.launcher.replace_if_idle())
            await asyncio.sleep(0)
            await asyncio.gather(*(rig.launcher.start(work) for work in works), replacing)
            for number, work in enumerate(works, 1):
                over = await rig.over(work.allocation_id)
                assert (over.exit_code, over.detail) == (number, "")

    asyncio.run(scenario())


def test_current_launcher_is_not_replaced() -> None:
    async def scenario() -> None:
        directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
        rig = Rig(directory)
        await rig.open()
        try:
            assert not rig.launcher.is_outdated
            again = await Launcher.connect(directory / "agent")
            await again.held()
            assert again.pid == rig.launcher.pid
            await again.close()
        finally:
            await rig.close()
            shutil.rmtree(directory, ignore_errors=True)

    asyncio.run(scenario())


def test_features_missing_from_old_launcher_are_named() -> None:
    work = Work(allocation_id="job-1.1", argv=("true",), lease_ms=5)
    form, unknown = split_known_fields(encode_work(work), PROTOCOL_1_FIELDS)
    assert (unknown, form) == (
        ["lease_ms"],
        encode_work(Work(allocation_id="job-1.1", argv=("true",))),
    )


def test_records_of_newer_launcher_are_read_without_unknown_fields() -> None:
    work = Work(allocation_id="job-1.1", argv=("true",), devices=(WorkDevice(index=1),))
    form = encode_work(work) | {"from_the_future": 1}
    form["devices"][0]["colour"] = "green"
    assert decode_work(form, lenient=True) == work
    with pytest.raises(ValueError, match="not a valid work"):
        decode_work(form)
