"""The longest time that others' starts and cancels take beside 20 jobs that flood their logs.

Jobs that write `yes` into their logs must not delay other users, so the launcher rotates logs in
child processes. The value is the longest of all starts (from the order to the report that the
command runs) and cancels (from the order to the report that nothing runs any more). The floor is
the same without a flood, which shows how loaded the machine is.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.launcher_protocol import Began, Over, Report, Work

TARGET_S = 0.2
FLOODS = 20
LOG_BYTES = 100 << 20
QUIET_S = 3.0
FLOODED_S = 12.0
PAUSE_S = 0.05
_FLOOD = "ulimit -f 524288; while :; do timeout 30 yes; sleep 0.05; done"
"""Stops at 256 MiB until the log is rotated, so that a slow launcher does not fill the disk."""


def measure(repeats: int) -> Result:
    """Take the figure once: its length does not depend on the repeats."""
    del repeats
    with tempfile.TemporaryDirectory(prefix="tgpu-", ignore_cleanup_errors=True) as directory:
        quiet, flooded, log_mb = asyncio.run(_delays(Path(directory)))
    return result(
        "floods",
        max(flooded),
        "s",
        target=TARGET_S,
        bound=LESS,
        floor=max(quiet),
        repeats=1,
        benchmark="floods",
        floods=FLOODS,
        usual=rounded(sorted(flooded)[len(flooded) // 2]),
        longest_start=rounded(max(flooded[::2])),
        longest_cancel=rounded(max(flooded[1::2])),
        usual_without=rounded(sorted(quiet)[len(quiet) // 2]),
        measured=len(flooded),
        largest_logs_mb=rounded(log_mb),
    )


async def _delays(directory: Path) -> tuple[list[float], list[float], float]:
    """Delays without and with the flood, and the largest size of all logs together."""
    launcher = await Launcher.connect(directory / "agent")
    await launcher.held()
    reports: dict[tuple[type[Report], str], asyncio.Event] = {}
    listener = asyncio.create_task(_listen(launcher, reports))
    try:
        show("floods: without a flood")
        quiet, _ = await _probe(launcher, directory, reports, "quiet", QUIET_S)
        for number in range(FLOODS):
            await launcher.start(
                _work(directory, f"flood-{number}", "timeout", "40", "sh", "-c", _FLOOD)
            )
        show(f"floods: {FLOODS} jobs flood their logs")
        flooded, log_mb = await _probe(launcher, directory, reports, "flooded", FLOODED_S)
        for number in range(FLOODS):
            await launcher.stop(f"flood-{number}.1", 0, "cancelled", 0)
        for number in range(FLOODS):
            await _event(reports, Over, f"flood-{number}.1").wait()
    finally:
        listener.cancel()
        await launcher.leave()
    return quiet, flooded, log_mb


async def _listen(
    launcher: Launcher, reports: dict[tuple[type[Report], str], asyncio.Event]
) -> None:
    async for report in launcher.reports():
        _event(reports, type(report), report.allocation_id).set()


def _event(
    reports: dict[tuple[type[Report], str], asyncio.Event], kind: type[Report], name: str
) -> asyncio.Event:
    return reports.setdefault((kind, name), asyncio.Event())


async def _probe(
    launcher: Launcher,
    directory: Path,
    reports: dict[tuple[type[Report], str], asyncio.Event],
    name: str,
    seconds: float,
) -> tuple[list[float], float]:
    """Start and cancel one job after another."""
    delays: list[float] = []
    log_bytes = number = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        number += 1
        work = _work(directory, f"{name}-{number}", "sleep", "1000")
        began = time.perf_counter()
        await launcher.start(work)
        await _event(reports, Began, work.allocation_id).wait()
        delays.append(time.perf_counter() - began)
        began = time.perf_counter()
        await launcher.stop(work.allocation_id, 0, "cancelled", None)
        await _event(reports, Over, work.allocation_id).wait()
        delays.append(time.perf_counter() - began)
        await launcher.forget(work.allocation_id, 0)
        log_bytes = max(log_bytes, _allocated(directory / "logs"))
        await asyncio.sleep(PAUSE_S)
    return delays, log_bytes / (1 << 20)


def _allocated(directory: Path) -> int:
    total = 0
    for entry in os.scandir(directory):
        try:
            total += entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _work(directory: Path, name: str, *argv: str) -> Work:
    return Work(
        allocation_id=f"{name}.1",
        argv=argv,
        uid=os.getuid(),
        gid=os.getgid(),
        environment={"PATH": "/usr/bin:/bin"},
        scratch_dir=str(directory / "scratch" / name),
        log_path=str(directory / "logs" / f"{name}.log"),
        log_max_bytes=LOG_BYTES,
        log_files=1,
        grace_ms=3_000,
    )


if __name__ == "__main__":
    print(json.dumps(measure(1)))
