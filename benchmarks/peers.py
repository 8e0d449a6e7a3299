"""Other programs that do a part of the same, measured in the same run where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HYPERQUEUE = "hyperqueue==0.27.0"
INSTALL_S = 180
_HYPERQUEUE_JOBS = """
import sys, tempfile, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
count, laps = int(sys.argv[1]), int(sys.argv[2])
with LocalCluster(tempfile.mkdtemp()) as cluster:
    cluster.start_worker(WorkerConfig(cores=8))
    client = cluster.client()
    time.sleep(1)
    for _ in range(laps):
        job = Job()
        for _ in range(count):
            job.program(["/bin/true"])
        began = time.perf_counter()
        best = [0.0]
        def seen(jobs):
            finished = sum(job["finished"] for job in jobs.values())
            best[0] = max(best[0], finished / (time.perf_counter() - began))
        submitted = client.submit(job)
        client.connection.wait_for_jobs((submitted.id,), seen)
        best[0] = max(best[0], count / (time.perf_counter() - began))
        print("rate", best[0], flush=True)
"""


def hyperqueue_rates(jobs: int, laps: int) -> list[float] | str:
    """Tasks per second of HyperQueue with eight slots, or why there are none.

    It looks at its tasks once a second, so its best moment counts and not the last look.
    """
    python = _hyperqueue_python()
    if python is None:
        return f"{HYPERQUEUE} cannot be installed here"
    with tempfile.TemporaryDirectory(prefix="tgpu-hq-") as directory:
        done = subprocess.run(
            [str(python), "-c", _HYPERQUEUE_JOBS, str(jobs), str(laps)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
            cwd=directory,
        )
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("rate ")]
    return [float(rate) for _, rate in words] or f"{HYPERQUEUE} broke ({done.returncode})"


def _hyperqueue_python() -> Path | None:
    """A Python of its own that has HyperQueue; made once and kept with other temporary files."""
    home = Path(tempfile.gettempdir()) / f"tgpu-peers-{os.getuid()}"
    python = home / "bin" / "python"
    ready = home / "ready"
    if ready.exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=INSTALL_S)
        command = [str(python), "-m", "pip", "install", "--quiet", HYPERQUEUE]
        subprocess.run(command, check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        shutil.rmtree(home, ignore_errors=True)
        return None
    ready.touch()
    return python


def xargs_rate(jobs: int) -> float | str:
    """Bare processes per second by `xargs -P8`: nothing is kept, watched or limited."""
    if shutil.which("xargs") is None:
        return "xargs is not installed"
    began = time.perf_counter()
    command = ["xargs", "-P8", "-n1", "/bin/true"]
    subprocess.run(command, input=b"x\n" * jobs, check=True)
    return jobs / (time.perf_counter() - began)


class Spooler:
    """Task-spooler with a server of its own."""

    def __init__(self) -> None:
        """Name its socket."""
        self.program = shutil.which("tsp") or shutil.which("ts")
        self._socket = f"{tempfile.mkdtemp(prefix='tgpu-tsp-')}/socket"
        self._environment = os.environ | {"TS_SOCKET": self._socket, "TS_MAXFINISHED": "10"}

    def run(self, *words: str) -> None:
        """`tsp` with these words."""
        assert self.program is not None
        subprocess.run(
            [self.program, *words],
            check=True,
            stdout=subprocess.DEVNULL,
            env=self._environment,
        )

    def close(self) -> None:
        """End its server."""
        if self.program is not None:
            self.run("-K")
        shutil.rmtree(Path(self._socket).parent, ignore_errors=True)
