"""What `tgpu top` adds in a large window: readings of this host, and their curves over time.

`History` keeps one sample for each refresh. `host_readings` reads /proc and returns shares from 0
to 1; it is used only where the server runs on this host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_SAMPLES = 600
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*%#"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The ticks of all CPUs since the boot: those in use, and all."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadings:
    """Readings of this host; `cpu` is the share since the reading before, None for the first."""

    times: CpuTimes
    cpu: float | None
    cores: int
    memory_used_mb: int
    memory_mb: int


def host_readings(before: HostReadings | None, proc: Path = PROC) -> HostReadings | None:
    """Read the CPU use since `before`, and the memory of this host; None if it cannot be read."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        memory = dict(
            line.split(":", 1)
            for line in (proc / "meminfo").read_text().splitlines()
            if ":" in line
        )
        ticks = [int(word) for word in lines[0].split()[1:9]]
        times = CpuTimes(busy=sum(ticks) - ticks[3] - ticks[4], total=sum(ticks))
        total, free = (int(memory[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, IndexError, ValueError):
        return None
    passed = 0 if before is None else times.total - before.times.total
    return HostReadings(
        times=times,
        cpu=max(0.0, times.busy - before.times.busy) / passed if before and passed > 0 else None,
        cores=sum(line.startswith("cpu") for line in lines) - 1,
        memory_used_mb=(total - free) // 1024,
        memory_mb=total // 1024,
    )


@dataclass(slots=True)
class Curve:
    """The samples of one reading, oldest first. A full bar is `scale`, or the largest with 0."""

    title: str
    scale: float = 1.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    text: str = ""

    def add(self, value: float, text: str) -> None:
        """Add a sample, and how it is written."""
        self.samples.append(value)
        self.text = text

    def drawn(self, cells: int, *, unicode: bool) -> str:
        """The last samples, one for each cell."""
        levels = LEVELS if unicode else ASCII_LEVELS
        shown = list(self.samples)[-cells:] if cells > 0 else []
        scale = self.scale or max(shown, default=0) or 1.0
        top = len(levels) - 1
        return "".join(levels[round(top * min(1.0, max(0.0, one / scale)))] for one in shown)


class History:
    """The curves of GPUs, queue and host."""

    def __init__(self) -> None:
        """All curves are empty."""
        self.curves = {
            "use": Curve("GPU use"),
            "allocated": Curve("GPUs allocated"),
            "pending": Curve("jobs pending", scale=0),
            "cpu": Curve("host CPU"),
            "memory": Curve("host memory"),
        }
        self._host: HostReadings | None = None

    def add(self, overview: dict[str, Any], *, is_local: bool) -> None:
        """Add a sample of an overview, and of this host if the server runs here."""
        gpus: Sequence[dict[str, Any]] = overview["gpus"]
        known = [gpu["utilisation_percent"] for gpu in gpus if _has(gpu, "utilisation_percent")]
        if known:
            mean = sum(known) / len(known)
            self.curves["use"].add(mean / 100, f"{mean:.0f} %")
        if gpus:
            held = sum(float(gpu.get("allocated_share") or 0) for gpu in gpus)
            self.curves["allocated"].add(held / len(gpus), f"{held:g} of {len(gpus)}")
        pending = int(overview["counts"].get("pending", 0))
        self.curves["pending"].add(pending, f"{pending:,}")
        host = host_readings(self._host) if is_local else None
        self._host = host
        if host is None:
            return
        if host.cpu is not None:
            self.curves["cpu"].add(host.cpu, f"{100 * host.cpu:.0f} % of {host.cores} cores")
        used, total = host.memory_used_mb / 1024, host.memory_mb / 1024
        self.curves["memory"].add(used / total, f"{used:.1f} of {total:.0f} GB")

    def shown(self) -> list[Curve]:
        """The curves that have samples."""
        return [curve for curve in self.curves.values() if curve.samples]


def _has(gpu: dict[str, Any], name: str) -> bool:
    return gpu.get(name) is not None
