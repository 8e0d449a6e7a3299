"""A real server for measures: `tgpu up` in a directory of its own, with its agent and launcher.

Everything is as people run it: three processes, SQLite with synchronous=FULL, jobs that are real
processes. It must leave nothing behind.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gpu_scheduler
from gpu_scheduler.client.client import Client

RUNS = 3
EIGHT = "8xA100-80GB"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_OVER_S = 120.0


class LiveServer:
    """Starts on entering, and stops and removes all of it on leaving."""

    def __init__(self, gpus: str = EIGHT, variables: dict[str, str] | None = None) -> None:
        """Declare these devices, or find some if there are none; start with these variables."""
        self.gpus = gpus
        self.variables = variables or {}
        self.directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
        self.client = Client(str(self.directory))

    def __enter__(self) -> Self:
        """Start it."""
        compile_all()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop whatever runs, jobs too: the launcher's children are the jobs."""
        self.client.close()
        launcher = self.processes().get("launcher", 0)
        self.stop()
        left = [pid for pid in _pids() if launcher and _parent(pid) == launcher]
        for pid in (*self.processes().values(), *left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes())
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> float:
        """Start the server; says how many seconds it took until it answered."""
        began = time.perf_counter()
        options = ["--state-dir", str(self.directory)]
        if self.gpus:
            options += ["--simulate", self.gpus]
        ports = ("--http-port", "0", "--metrics-port", "0")
        tgpu("up", "--daemon", *options, *ports, **self.variables)
        return time.perf_counter() - began

    def stop(self) -> None:
        """Stop server and agent; the launcher goes with them if it has nothing to watch."""
        tgpu("down", "--state-dir", str(self.directory))

    @property
    def facts(self) -> dict[str, Any]:
        """What the server has written down about itself: its pid, its ports."""
        found: dict[str, Any] = json.loads((self.directory / "server.json").read_bytes())
        return found

    @property
    def http_port(self) -> int:
        """Where it listens on the loopback."""
        return int(self.facts["http"].rpartition(":")[2])

    def occupy(self) -> str:
        """Let one job hold all devices, so that all others wait; its id."""
        count = int(self.gpus.partition("x")[0])
        job = self.client.submit(["sleep", "3600"], name="occupies", gpu_count=count)
        wait_until(lambda: job.state() == "running")
        return job.id

    def fill(self, count: int, *, at_once: int = 1_000) -> None:
        """Let so many jobs wait."""
        for first in range(0, count, at_once):
            self.client.submit_many(
                {"name": f"waits-{number}", "command": ["/bin/true"], "gpu_count": 1}
                for number in range(first, min(count, first + at_once))
            )

    # --- what it costs

    def processes(self) -> dict[str, int]:
        """The processes that run for it, by what they are."""
        found: dict[str, int] = {}
        for pid in _pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if not any(word.startswith(os.fsencode(self.directory)) for word in words):
                continue
            kind = "server" if b"up" in words else "agent"
            if b"gpu_scheduler.agent.launcher" in words:
                # Forked by the launcher in this order: the fork server, then pre-forked children.
                kind = "fork server" if "launcher" in found else "launcher"
            found.setdefault(kind, pid)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each process, and of all that the launcher has buried."""
        spent: dict[str, float] = {}
        for kind, pid in self.processes().items():
            spent[kind] = cpu_seconds_of(pid)
            if kind == "launcher":
                fields = _stat(pid)
                spent["jobs"] = (int(fields[13]) + int(fields[14])) / _TICKS
        return spent

    def memory_mb(self) -> dict[str, float]:
        """Resident memory of each process."""
        pages = {
            kind: int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            for kind, pid in self.processes().items()
        }
        return {kind: count * _PAGE_MB for kind, count in pages.items()}


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU time between two looks."""
    return {kind: after[kind] - before.get(kind, 0.0) for kind in after}


def tgpu(*words: str, **variables: str) -> str:
    """The command line as people use it; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=plain_environment() | variables,
    )
    return done.stdout


def plain_environment() -> dict[str, str]:
    """Ours, but for what would keep Python from using what it has compiled."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "TGPU_SERVER")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def compile_all() -> None:
    """Programs are measured as they are installed: compiled."""
    compileall.compile_dir(str(Path(gpu_scheduler.__file__).parent), quiet=2)


def cpu_seconds_of(pid: int) -> float:
    """CPU time so far of one process."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def wait_until(is_so: Any, longest_s: float = _OVER_S, *, every_s: float = 0.02) -> None:
    """Look until something holds."""
    give_up = time.perf_counter() + longest_s
    while not is_so():
        if time.perf_counter() > give_up:
            raise AssertionError("it took too long")
        time.sleep(every_s)


def middle(values: Iterable[float]) -> float:
    """The median."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _pids() -> list[int]:
    """In the order in which they began: numbers start again from below after a while."""
    began: list[tuple[int, int]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                began.append((int(_stat(int(entry.name))[19]), int(entry.name)))
    return [pid for _, pid in sorted(began)]


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
