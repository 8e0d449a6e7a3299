"""From submission to the start of the process, on an idle server, by the client over the socket.

The process is a shell that writes into a pipe at once. The peer is task-spooler, by its command.
The floor is the same shell by a bare `Popen`.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.live import RUNS, LiveServer, middle
from benchmarks.peers import Spooler
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

TARGET_MS = 15.0
MOST_OF_PEER = 3.0
JOBS = 60
PAUSE_S = 0.05


def measure(repeats: int) -> Result:
    """Take turns, so that all see the same machine."""
    laps = min(repeats, RUNS)
    ours: list[float] = []
    peers: list[float] = []
    floors: list[float] = []
    spooler = Spooler()
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory, LiveServer() as server:
        pipe = Path(directory) / "pipe"
        os.mkfifo(pipe)
        command = ["/bin/sh", "-c", f"echo > {pipe}"]
        heard = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        for lap in range(laps):
            show(f"latency: {lap + 1} of {laps}")
            ours.append(_median_ms(heard, lambda: server.client.submit(command, gpu_count=1)))
            if spooler.program is not None:
                peers.append(_median_ms(heard, lambda: spooler.run(*command)))
            floors.append(_median_ms(heard, lambda: subprocess.Popen(command).wait()))
        os.close(heard)
    spooler.close()
    value = middle(ours)
    allowed = min(TARGET_MS, MOST_OF_PEER * middle(peers)) if peers else TARGET_MS
    return result(
        "latency",
        value,
        "ms, median",
        floor=middle(floors),
        repeats=laps,
        target=rounded(allowed),
        bound=LESS,
        runs=[rounded(one) for one in ours],
        floor_runs=[rounded(one) for one in floors],
        spooler_runs=[rounded(one) for one in peers] or "task-spooler is not installed",
        ratio_to_spooler=rounded(value / middle(peers)) if peers else None,
    )


def _median_ms(heard: int, start: Callable[[], object]) -> float:
    took = []
    for _ in range(JOBS):
        began = time.perf_counter()
        start()
        select.select([heard], [], [], 30)
        took.append(time.perf_counter() - began)
        os.read(heard, 100)
        time.sleep(PAUSE_S)
    return 1000 * middle(took)
