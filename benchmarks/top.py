"""What `tgpu top` costs with 8 GPUs and 1,000 jobs: the program, and what it asks of the server.

The value is the part of one core that the program takes on a terminal of 160 x 50, together with
what the server takes more than without it. Jobs start and end every second meanwhile. The floor is
a program that only wakes up as often.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

from benchmarks.live import RUNS, LiveServer, middle, plain_environment
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

MOST_PERCENT = 5.0
JOBS = 1_000
SETTLE_S = 4.0
WATCH_S = 20.0
ROWS, COLUMNS = 50, 160
PYTHON = [sys.executable, "-m", "gpu_scheduler"]
BARE = [sys.executable, "-I", "-c", "import time\nwhile True: time.sleep(2)"]


def measure(repeats: int) -> Result:
    """Without it, with it, and a program that does nothing."""
    laps = min(repeats, RUNS)
    own: list[float] = []
    due: list[float] = []
    with LiveServer() as server:
        _fill(server)
        for lap in range(laps):
            show(f"top: {lap + 1} of {laps}")
            without = _server_percent(server)
            with Watcher([*PYTHON, "top", "--server", str(server.directory)]) as top:
                own.append(top.percent(server))
                due.append(max(0.0, top.server_percent - without))
                drawn = top.read
        with Watcher(BARE) as bare:
            floor = bare.percent(server)
    totals = [one + more for one, more in zip(own, due, strict=True)]
    return result(
        "top",
        middle(totals),
        "% of a core",
        floor=floor,
        repeats=laps,
        target=MOST_PERCENT,
        bound=LESS,
        program_percent=[rounded(one) for one in own],
        server_more_percent=[rounded(one) for one in due],
        jobs=JOBS,
        window=f"{COLUMNS}x{ROWS}",
        drawn_bytes_per_second=rounded(drawn / WATCH_S),
    )


def _fill(server: LiveServer) -> None:
    """Seven devices are held, and on the eighth a thousand jobs take turns."""
    for number in range(7):
        server.client.submit(["sleep", "3600"], name=f"train-{number}", gpu_count=1)
    server.client.submit_many(
        {
            "name": f"sweep-{number}",
            "command": ["sleep", "1"],
            "gpu_count": 1,
            "max_runtime_minutes": 1 + number % 7,
            "priority": 700 + number % 5,
        }
        for number in range(JOBS - 7)
    )
    time.sleep(SETTLE_S)


def _server_percent(server: LiveServer) -> float:
    before = server.cpu_seconds()["server"]
    time.sleep(WATCH_S)
    return 100 * (server.cpu_seconds()["server"] - before) / WATCH_S


class Watcher:
    """A program on a terminal that somebody reads."""

    def __init__(self, command: list[str]) -> None:
        """Start it."""
        self.read = 0
        self.server_percent = 0.0
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execve(
                command[0], command, plain_environment() | {"TERM": "xterm", "LANG": "C.UTF-8"}
            )

    def __enter__(self) -> Watcher:
        """Let it start up first: that is another measure."""
        self._watch(SETTLE_S)
        self.read = 0
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def percent(self, server: LiveServer) -> float:
        """Its part of a core while it is watched."""
        before, served = self._cpu_s(), server.cpu_seconds()["server"]
        self._watch(WATCH_S)
        self.server_percent = 100 * (server.cpu_seconds()["server"] - served) / WATCH_S
        return 100 * (self._cpu_s() - before) / WATCH_S

    def _watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                self.read += len(os.read(self._terminal, 65_536))

    def _cpu_s(self) -> float:
        """To the nanosecond, where ticks would be as large as what is measured."""
        text = Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii")
        return int(text.split()[0]) / 1e9
