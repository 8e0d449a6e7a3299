"""What server, agent and launcher cost together while nothing happens.

The value is their part of one core over half a minute; beside it their resident memory. The floor
is a Python process that sleeps.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.live import RUNS, LiveServer, middle, spent
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

MOST_PERCENT = 2.0
MOST_MB = 180
SETTLE_S = 5.0
WATCH_S = 10.0


def measure(repeats: int) -> Result:
    """Start, run one job, then watch."""
    laps = min(repeats, RUNS)
    percents: list[float] = []
    by_process: dict[str, float] = {}
    with LiveServer() as server:
        server.client.submit(["/bin/true"], gpu_count=1).result()
        time.sleep(SETTLE_S)
        for lap in range(laps):
            show(f"idle: {lap + 1} of {laps}")
            before = server.cpu_seconds()
            time.sleep(WATCH_S)
            used = spent(before, server.cpu_seconds())
            by_process = {kind: rounded(100 * one / WATCH_S) for kind, one in used.items()}
            percents.append(100 * sum(used.values()) / WATCH_S)
        memory = server.memory_mb()
    total = sum(memory.values())
    return result(
        "idle",
        middle(percents),
        "% of a core",
        floor=0.0,
        repeats=laps,
        target=MOST_PERCENT,
        bound=LESS,
        also_met=total <= MOST_MB,
        runs=[rounded(one) for one in percents],
        percent_by_process=by_process,
        memory_mb=rounded(total),
        memory_target_mb=MOST_MB,
        memory_by_process={kind: rounded(one) for kind, one in memory.items()},
        bare_python_mb=rounded(_bare_mb()),
    )


def _bare_mb() -> float:
    sleeper = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
    time.sleep(0.5)
    pages = int(Path(f"/proc/{sleeper.pid}/statm").read_text(encoding="ascii").split()[1])
    sleeper.kill()
    sleeper.wait()
    return pages * 4096 / (1 << 20)
