"""`tgpu submit` and `tgpu list` as processes, with 100,000 jobs pending.

The floor is `python -I -c pass`, run in turn with them. Both figures are times of it; the value is
that of `tgpu submit`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.live import RUNS, LiveServer, middle, plain_environment
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

PENDING = 100_000
SUBMIT_TARGET = 3.5
LIST_TARGET = 10.0
TURNS = 15


def measure(repeats: int) -> Result:
    """Fill the queue, then run the three in turn."""
    laps = min(repeats, RUNS)
    program = _program()
    laps_of: dict[str, list[float]] = {"bare": [], "submit": [], "list": []}
    with LiveServer() as server:
        server.occupy()
        show(f"startup: {PENDING} jobs")
        server.fill(PENDING)
        where = f"unix:{server.directory}/server.sock"
        commands = {
            "bare": [sys.executable, "-I", "-c", "pass"],
            "submit": [*program, "submit", "--server", where, "--gpus", "1", "--", "/bin/true"],
            "list": [*program, "list", "--server", where],
        }
        for lap in range(laps):
            show(f"startup: {lap + 1} of {laps}")
            took: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(TURNS):
                for name, command in commands.items():
                    took[name].append(_run(command))
            for name, times in took.items():
                laps_of[name].append(1000 * middle(times))
    ratios = {
        name: [one / bare for one, bare in zip(laps_of[name], laps_of["bare"], strict=True)]
        for name in ("submit", "list")
    }
    listing = middle(ratios["list"])
    return result(
        "startup",
        middle(ratios["submit"]),
        "times `python -I -c pass`",
        floor=1.0,
        repeats=laps,
        target=SUBMIT_TARGET,
        bound=LESS,
        also_met=listing <= LIST_TARGET,
        runs=[rounded(one) for one in ratios["submit"]],
        list_ratio=rounded(listing),
        list_target=LIST_TARGET,
        list_runs=[rounded(one) for one in ratios["list"]],
        ms={name: [rounded(one) for one in values] for name, values in laps_of.items()},
        pending=PENDING,
    )


def _program() -> list[str]:
    """The command beside our Python, as it is installed."""
    beside = Path(sys.executable).parent / "tgpu"
    if beside.exists():
        return [str(beside)]
    found = shutil.which("tgpu")
    return [found] if found else [sys.executable, "-m", "gpu_scheduler"]


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=plain_environment())
    return time.perf_counter() - began
