"""Supervised spawns of /bin/true per second by the launcher, records and fsyncs included.

The launcher floor of everything that runs jobs. Beside it, in the same run: bare Popen from a small
process, and a bare append with fdatasync. The value is the best of several laps with eight jobs at
a time, from the order to the report that nothing runs any more.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.launcher_protocol import Over, Work

TARGET = 800
JOBS = 400
AT_ONCE = 8
POPENS = 300
SYNCS = 300


def measure(repeats: int) -> Result:
    """Take the figure beside its floors."""
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        floor = max(_popens() for _ in range(repeats))
        syncs = max(_syncs(Path(directory)) for _ in range(repeats))
        facts = asyncio.run(launcher_rates(Path(directory), repeats))
    rates = facts.pop("rates")
    return result(
        "spawn",
        max(rates),
        "jobs/s",
        target=TARGET,
        floor=floor,
        repeats=repeats,
        benchmark="spawn",
        bare_popen_per_second=rounded(floor),
        bare_fdatasync_per_second=rounded(syncs),
        usual=rounded(sorted(rates)[len(rates) // 2]),
        **facts,
    )


async def launcher_rates(directory: Path, repeats: int) -> dict[str, Any]:
    """Jobs per second by the launcher alone, in each lap."""
    began = time.perf_counter()
    launcher = await Launcher.connect(directory / "agent")
    await launcher.held()
    ready_ms = (time.perf_counter() - began) * 1000
    rates = []
    try:
        for lap in range(repeats):
            show(f"spawn: lap {lap + 1} of {repeats}")
            rates.append(await _lap(launcher, directory, lap))
        memory = _status(launcher.pid, "VmRSS")
    finally:
        await launcher.leave()
    return {
        "rates": rates,
        "ready_ms": rounded(ready_ms),
        "launcher_rss_mb": rounded(memory / 1024),
    }


async def _lap(launcher: Launcher, directory: Path, lap: int) -> float:
    """Eight at a time, as on eight devices: a new one for each that is over."""
    reports = launcher.reports()
    begun = over = 0
    began = time.perf_counter()
    pending: set[asyncio.Task[None]] = set()

    def start() -> None:
        nonlocal begun
        work = Work(
            allocation_id=f"lap-{lap}-{begun}.1",
            argv=("/bin/true",),
            uid=os.getuid(),
            gid=os.getgid(),
            environment={"PATH": "/usr/bin:/bin"},
            scratch_dir=str(directory / "scratch" / f"{lap}-{begun}"),
            log_path=str(directory / "logs" / f"{lap}-{begun}.log"),
        )
        begun += 1
        pending.add(asyncio.create_task(launcher.start(work)))

    for _ in range(AT_ONCE):
        start()
    async for report in reports:
        if not isinstance(report, Over):
            continue
        if report.exit_code != 0:
            raise AssertionError(report)
        over += 1
        pending.add(asyncio.create_task(launcher.forget(report.allocation_id, report.member)))
        if begun < JOBS:
            start()
        elif over == JOBS:
            break
        pending = {task for task in pending if not task.done()}
    seconds = time.perf_counter() - began
    await asyncio.gather(*pending)
    return JOBS / seconds


def _popens() -> float:
    """Bare spawns from a small process: eight at a time, waited for, nothing kept."""
    code = (
        "import subprocess, time\n"
        "began = time.perf_counter()\n"
        f"for _ in range({POPENS // AT_ONCE}):\n"
        f"    running = [subprocess.Popen(['/bin/true']) for _ in range({AT_ONCE})]\n"
        "    for child in running: child.wait()\n"
        f"print({POPENS // AT_ONCE * AT_ONCE} / (time.perf_counter() - began))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def _syncs(directory: Path) -> float:
    """Bare durable appends of a record's size."""
    target = os.open(directory / "syncs", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(SYNCS):
            os.write(target, b"x" * 1000)
            os.fdatasync(target)
        return SYNCS / (time.perf_counter() - began)
    finally:
        os.close(target)


def _status(pid: int, name: str) -> int:
    for text in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if text.startswith(name + ":"):
            return int(text.split()[1])
    return 0


if __name__ == "__main__":
    print(json.dumps(measure(5)))
