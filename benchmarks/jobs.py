"""2,000 one-GPU jobs that run /bin/true on eight devices, from submission to all completed.

The floor is the launcher alone with eight such jobs at a time, the peers are HyperQueue with eight
slots and `xargs -P8`, which keeps nothing. All of them in the same run, one after the other.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.live import RUNS, LiveServer, middle, spent, wait_until
from benchmarks.peers import hyperqueue_rates, xargs_rate
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.spawn import launcher_rates

JOBS = 2_000
LEAST_OF_FLOOR = 0.6


def measure(repeats: int) -> Result:
    """Take turns, so that all see the same machine."""
    laps = min(repeats, RUNS)
    rates: list[float] = []
    floors: list[float] = []
    peers: list[float] = []
    bare: list[float] = []
    problem = ""
    cpu: dict[str, float] = {}
    with LiveServer() as server:
        for lap in range(laps):
            show(f"jobs: {lap + 1} of {laps}")
            before = server.cpu_seconds()
            rates.append(_lap(server))
            cpu = spent(before, server.cpu_seconds())
            floors.append(_floor())
            found = hyperqueue_rates(JOBS, 1)
            if isinstance(found, str):
                problem = found
            else:
                peers += found
            raw = xargs_rate(JOBS)
            if isinstance(raw, float):
                bare.append(raw)
    value, floor = middle(rates), middle(floors)
    least = max(LEAST_OF_FLOOR * floor, middle(peers) if peers else 0.0)
    return result(
        "jobs",
        value,
        "jobs/s",
        floor=floor,
        repeats=laps,
        target=rounded(least),
        runs=[rounded(rate) for rate in rates],
        floor_runs=[rounded(rate) for rate in floors],
        hyperqueue_runs=[rounded(rate) for rate in peers] or problem,
        ratio_to_hyperqueue=rounded(value / middle(peers)) if peers else None,
        xargs_runs=[rounded(rate) for rate in bare],
        cpu_ms_per_job={kind: rounded(1000 * used / JOBS) for kind, used in cpu.items()},
    )


def _lap(server: LiveServer) -> float:
    done_before = server.client.status()["completed_jobs"]
    jobs = [
        {"name": f"true-{number}", "command": ["/bin/true"], "gpu_count": 1}
        for number in range(JOBS)
    ]
    began = time.perf_counter()
    server.client.submit_many(jobs)
    wait_until(lambda: server.client.status()["completed_jobs"] - done_before >= JOBS, every_s=0.1)
    return JOBS / (time.perf_counter() - began)


def _floor() -> float:
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        facts = asyncio.run(launcher_rates(Path(directory), 1))
    rate: float = facts["rates"][0]
    return rate
