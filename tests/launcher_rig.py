"""A real launcher for tests: started in a short directory and stopped with all its jobs."""

# ruff: noqa: ASYNC110, ASYNC240
# These tests poll files; their event loop has nothing else to do.

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.launcher_protocol import Began, Over, Report, Saved, Work

NOBODY = 65534
AS_ROOT = os.geteuid() == 0
Answer = TypeVar("Answer")
T = TypeVar("T", Began, Over, Saved)


class Rig:
    """A launcher and all its reports, by job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.launcher: Launcher
        self.said: list[Report] = []
        self._heard = asyncio.Condition()
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.launcher = await Launcher.connect(self.directory / "agent")
        await self.launcher.held()
        self._listener = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop every job, then the launcher."""
        for name, member, over in await self.launcher.held():
            if over is None:
                await self.launcher.stop(name, member, "cancelled", 0)
        async with asyncio.timeout(60):
            while any(over is None for _, _, over in await self.launcher.held()):
                await asyncio.sleep(0.02)
        for name, member, _ in await self.launcher.held():
            await self.launcher.forget(name, member)
        await self.hang_up()
        await self.launcher.leave()

    async def start_many(self, works: Iterable[Work]) -> None:
        """Start all of these at once; the launcher records them together."""
        await asyncio.gather(*(self.launcher.start(work) for work in works))

    async def hang_up(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def _listen(self) -> None:
        async for report in self.launcher.reports():
            async with self._heard:
                self.said.append(report)
                self._heard.notify_all()

    def work(self, name: str, /, *argv: str, **more: Any) -> Work:
        """Work of the test's own user with default directories."""
        usual = Work(
            allocation_id=name,
            job_id=name.partition(".")[0],
            argv=argv,
            workdir=str(self.directory),
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            uid=os.geteuid(),
            gid=os.getegid(),
            log_path=str(self.directory / "logs" / f"{name}.log"),
            scratch_dir=str(self.directory / "scratch" / name),
            grace_ms=3_000,
        )
        return replace(usual, **more)

    def log(self, work: Work) -> str:
        return Path(work.log_path).read_text(encoding="utf-8", errors="replace")

    async def until(self, true: Callable[[], Answer], seconds: float = 60) -> Answer:
        """Wait for a condition that reports bring about."""
        async with asyncio.timeout(seconds), self._heard:
            while not (found := true()):
                await self._heard.wait()
            return found

    async def report(self, kind: type[T], name: str, seconds: float = 60) -> T:
        def find() -> T | None:
            for report in self.said:
                if isinstance(report, kind) and report.allocation_id == name:
                    return report
            return None

        found = await self.until(find, seconds)
        assert found is not None
        return found

    async def over(self, name: str, seconds: float = 60) -> Over:
        return await self.report(Over, name, seconds)

    async def began(self, name: str) -> Began:
        return await self.report(Began, name)

    async def run(self, work: Work) -> Over:
        await self.launcher.start(work)
        return await self.over(work.allocation_id)

    async def kill_launcher(self) -> None:
        """SIGKILL, and wait until it is gone; the client starts the next one."""
        pid = self.launcher.pid
        os.kill(pid, signal.SIGKILL)
        while self.launcher.pid == pid:
            await asyncio.sleep(0.01)


async def log_line(rig: Rig, work: Work, text: str, seconds: float = 60) -> None:
    """Wait until a job has written something, which no report tells."""
    async with asyncio.timeout(seconds):
        while not Path(work.log_path).exists() or text not in rig.log(work):
            await asyncio.sleep(0.01)


async def start_until(rig: Rig, work: Work, text: str) -> None:
    """Start a job, and wait until it has written something."""
    await rig.launcher.start(work)
    await log_line(rig, work, text)


@contextlib.asynccontextmanager
async def a_rig() -> AsyncIterator[Rig]:
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    rig = Rig(directory)
    await rig.open()
    try:
        yield rig
    finally:
        await rig.close()
        shutil.rmtree(directory, ignore_errors=True)


def with_launcher(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a scenario against its own launcher."""

    async def run() -> None:
        async with a_rig() as rig:
            await scenario(rig)

    asyncio.run(run())
    gc.collect()  # a connection that was left open is reported by this test, not by a later one


def is_alive(pid: int) -> bool:
    """Whether the process runs and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}
