"""What it costs to watch eight GPUs every five seconds, with a job on each.

The devices are those of the tests' fake driver; the binding, agent, stream and server are the real
ones. They are read fifty times as often as usual, and once more nearly never, on two servers that
are alike; the difference in CPU time of all processes, for each look, is what a look costs. The
value is that cost every five seconds, as a part of one core. The floor is the binding alone, asked
for the same readings.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.live import LiveServer, spent, wait_until
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded, skipped

MOST_PERCENT = 1.0
GPUS = 8
USUAL_S = 5.0
OFTEN_S = 0.1
SELDOM_S = 3600.0
SETTLE_S = 3.0
WATCH_S = 20.0
FLOOR = """
import time, pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
began = time.process_time()
for _ in range(200):
    for card in cards:
        pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2)
        pynvml.nvmlDeviceGetUtilizationRates(card)
        pynvml.nvmlDeviceGetTemperatureV(card, 0)
        pynvml.nvmlDeviceGetPowerUsage(card)
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3(card)
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(card)
print((time.process_time() - began) / 200)
"""


def measure(repeats: int) -> Result:
    """Watch often, watch seldom, and divide."""
    del repeats
    if shutil.which("gcc") is None:
        return skipped("monitoring", "gcc is not installed, so the fake driver cannot be built")
    from tests.fakes.nvml import FakeNvml, built

    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    try:
        nvml = FakeNvml(built(directory / "lib"), directory / "state")
        nvml.a100s(GPUS)
        names = ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")
        variables = {name: nvml.env[name] for name in names}
        often = _cpu_seconds(nvml, variables, OFTEN_S)
        seldom = _cpu_seconds(nvml, variables, SELDOM_S)
        floor_s = float(
            subprocess.run(
                [sys.executable, "-c", FLOOR], env=nvml.env, capture_output=True, check=True
            ).stdout
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    looks = WATCH_S / OFTEN_S
    cost_s = {kind: (often[kind] - seldom.get(kind, 0.0)) / looks for kind in often}
    look_s = sum(cost_s.values())
    return result(
        "monitoring",
        100 * look_s / USUAL_S,
        "% of a core",
        floor=100 * floor_s / USUAL_S,
        repeats=1,
        target=MOST_PERCENT,
        bound=LESS,
        gpus=GPUS,
        interval_s=USUAL_S,
        look_ms=rounded(1000 * look_s),
        look_ms_by_process={kind: rounded(1000 * max(0.0, one)) for kind, one in cost_s.items()},
    )


def _cpu_seconds(nvml: object, variables: dict[str, str], interval_s: float) -> dict[str, float]:
    """CPU time of each process while eight jobs hold a GPU each and do nothing."""
    settings = {
        "GPU_SCHEDULER_GPU_MONITOR_INTERVAL_S": str(interval_s),
        "GPU_SCHEDULER_GPU_IDLE_ACTION": "off",
    }
    with LiveServer("", variables | settings) as server:
        show(f"monitoring: every {interval_s:g} s")
        jobs = [server.client.submit(["sleep", "600"], gpu_count=1) for _ in range(GPUS)]
        wait_until(lambda: all(job.state() == "running" for job in jobs))
        launcher = server.processes()["launcher"]
        pids = Path(f"/proc/{launcher}/task/{launcher}/children").read_text("ascii").split()
        for index, pid in enumerate(pids[-GPUS:]):
            nvml.gpu(index, compute=f"{pid}:40000", memory_used_mb=41000)  # type: ignore[attr-defined]
        time.sleep(SETTLE_S)
        before = server.cpu_seconds()
        time.sleep(WATCH_S)
        used = spent(before, server.cpu_seconds())
        for job in jobs:
            job.cancel()
        for index in range(GPUS):
            nvml.gpu(index, compute=None, memory_used_mb=0)  # type: ignore[attr-defined]
    return used
