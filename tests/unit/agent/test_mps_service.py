"""The MPS daemon of an agent lives as long as a job needs it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_scheduler.agent.devices.source import DetectedDevice, NodeInventory
from gpu_scheduler.agent.jobs.mps import PROGRAM
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.launcher_protocol import Over, Report
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.wire import agent_pb2 as pb
from tests.unit.agent.test_service import (
    OneServer,
    QuietLauncher,
    a_config,
    a_forget,
    directory,
    serving,
)

__all__ = ["directory"]


class Control(QuietLauncher):
    """A launcher that records the control commands; a stop ends jobs that never started."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.begins = asyncio.Event()
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.quits = asyncio.Event()
        self._ends: asyncio.Queue[Report] = asyncio.Queue()

    async def run_helper(self, argv: tuple[str, ...], *_: object) -> None:
        what = argv[5] if len(argv) > 5 else "-d"
        self.told.append(what)
        if what == "-d":
            self.begins.set()
            await self.may_begin.wait()
        elif what == "quit":
            self.quits.set()

    async def stop(self, allocation_id: str, member: int, why: str) -> None:
        end = {"exit_code": None, "signal": None, "ran": False, "at_ms": 1, "run_ms": 0}
        over = Over(allocation_id=allocation_id, member=member, stopped_by=why, **end)  # type: ignore[arg-type]
        self._ends.put_nowait(over)

    async def reports(self) -> AsyncIterator[Report]:
        while True:
            yield await self._ends.get()


def with_shared_gpu(directory: Path, monkeypatch: pytest.MonkeyPatch, test: Any) -> None:
    program = directory / PROGRAM
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(directory))

    async def run() -> None:
        server, launcher = OneServer(), Control()
        listening = await serving(directory, server)
        devices = (DetectedDevice(index=0, uuid="GPU-0"),)
        found = NodeInventory(cpu_milli=1000, memory_mb=1000, devices=devices, detection="nvml")
        places = {"scratch_dir": str(directory / "scratch"), "max_retry_interval_s": 0.05}
        config = replace(a_config(directory), **places)
        agent = Agent(config, cast(Launcher, launcher), found, None)
        running = asyncio.create_task(agent.run())
        try:
            async with asyncio.timeout(60):
                await test(server, launcher)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await listening.stop(None)

    asyncio.run(run())


def an_order(name: str, **what: Any) -> pb.ServerMessage:
    order = pb.Order(allocation_id=f"{name}.1", **what)
    return pb.ServerMessage(orders=pb.Orders(orders=[order]))


def a_share(name: str) -> pb.ServerMessage:
    half = pb.HeldDevice(index=0, share_milli=500)
    return an_order(name, start=pb.Start(job_id=name, attempt=1, argv=["true"], devices=[half]))


def test_reconnection_does_not_stop_daemon_of_starting_job(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: OneServer, launcher: Control) -> None:
        await server.next_hello()
        launcher.may_start.clear()
        server.says.put_nowait(a_share("job-1"))
        await launcher.asked.wait()
        server.says.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="later")))
        assert [held.allocation_id for held in (await server.next_hello()).held] == ["job-1.1"]
        launcher.may_start.set()
        await launcher.started.get()
        assert "quit" not in launcher.told

    with_shared_gpu(directory, monkeypatch, test)


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["stopped", "forgotten"])
def test_job_that_ends_while_daemon_starts_leaves_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    async def test(server: OneServer, launcher: Control) -> None:
        launcher.may_begin.clear()
        server.says.put_nowait(a_share("job-1"))
        await launcher.begins.wait()
        server.says.put_nowait(an_order("job-1", stop=pb.Stop(why="cancelled")))
        assert (await server.next_fact()).over.stopped_by == "cancelled"
        if is_forgotten:
            server.says.put_nowait(a_forget("job-1"))
            await launcher.forgotten.get()
        launcher.may_begin.set()
        await launcher.quits.wait()
        assert launcher.started.empty() == is_forgotten

    with_shared_gpu(directory, monkeypatch, test)
