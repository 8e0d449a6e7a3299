"""Acknowledged, durable submissions over HTTP from another process to a real server.

The value is the rate of jobs that come 1,000 in a request, each with a name and an argument of its
own. Beside it: one job in a request at 32 connections, and an array of 1,000,000 tasks. The floor
is SQLite alone with as many narrow rows in as many transactions, with the same fsync.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.http import CONNECTIONS, JOBS_PER_REQUEST, lap
from benchmarks.live import RUNS, LiveServer, middle, spent
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.store import BATCH, bare_rows

BULK_TARGET = 47_000
SINGLE_TARGET = 2_500
SINGLE_P99_MS = 50
ARRAY_TARGET_MS = 50
ARRAY = "0-999999"
BULK_REQUESTS = 60
SINGLE_REQUESTS = 5_000


def measure(repeats: int) -> Result:
    """One server for all, with its devices taken, so that what is submitted waits."""
    laps = min(repeats, RUNS)
    bulk: list[dict[str, float]] = []
    single: list[dict[str, float]] = []
    with LiveServer() as server:
        server.occupy()
        for number in range(laps):
            show(f"submissions: {number + 1} of {laps}")
            bulk.append(_lap(server, "bulk", BULK_REQUESTS, 2))
            single.append(_lap(server, "single", SINGLE_REQUESTS, CONNECTIONS))
    arrays = [_array() for _ in range(laps)]
    rates = [one["rate"] * JOBS_PER_REQUEST for one in bulk]
    singles = [one["rate"] for one in single]
    p99s = [one["p99_ms"] for one in single]
    return result(
        "submissions",
        middle(rates),
        "durable jobs/s, 1,000 in a request",
        floor=_floor(),
        repeats=laps,
        target=BULK_TARGET,
        also_met=middle(singles) >= SINGLE_TARGET
        and middle(p99s) <= SINGLE_P99_MS
        and middle(arrays) <= ARRAY_TARGET_MS,
        cpu_value=middle(JOBS_PER_REQUEST * one["cpu_rate"] for one in bulk),
        runs=[rounded(rate) for rate in rates],
        single_runs=[rounded(rate) for rate in singles],
        single_target=SINGLE_TARGET,
        single_by_cpu=[rounded(one["cpu_rate"]) for one in single],
        single_p99_ms=[rounded(one) for one in p99s],
        single_p99_target_ms=SINGLE_P99_MS,
        connections=CONNECTIONS,
        array_ms=[rounded(one) for one in arrays],
        array_target_ms=ARRAY_TARGET_MS,
    )


def _lap(server: LiveServer, kind: str, requests: int, connections: int) -> dict[str, float]:
    before = server.cpu_seconds()
    found = asyncio.run(lap(server.http_port, kind, requests, connections))
    used = spent(before, server.cpu_seconds())["server"]
    return {**found, "cpu_rate": requests / used}


def _array() -> float:
    """Milliseconds until a million tasks are accepted."""
    with LiveServer() as server:
        server.occupy()
        began = time.perf_counter()
        server.client.submit(["/bin/true"], gpu_count=1, array=ARRAY)
        return 1000 * (time.perf_counter() - began)


def _floor() -> float:
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        return BATCH / median(bare_rows(Path(directory) / "floor.db").walls)
