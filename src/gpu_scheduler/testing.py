"""For tests of programs that use `LocalScheduler`: replaceable GPUs, files, metrics and health.

    from gpu_scheduler import LocalScheduler, SchedulerConfig
    from gpu_scheduler.testing import MockGPUProvider, MockMetricsProvider

    config = SchedulerConfig(num_gpus=2, queue_size_limit=10)
    with LocalScheduler(config, gpu_provider=MockGPUProvider(num_gpus=2)) as scheduler:
        job_id = scheduler.add_job("/path/script.py", args=["--test"])

Jobs on these GPUs are still real processes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_scheduler.server.in_process.providers import OK, GPUStats, PlainMetrics

__all__ = [
    "GPUStats",
    "MockFileSystem",
    "MockGPUProvider",
    "MockHealthMonitor",
    "MockMetricsProvider",
]


class MockGPUProvider:
    """GPUs of one model. `set` changes measurements of one GPU; `fail` makes all reads fail."""

    def __init__(
        self, num_gpus: int = 2, *, model: str = "A100", memory_total_mb: int = 81_920
    ) -> None:
        """All GPUs are idle and healthy at first."""
        self._lock = threading.Lock()
        self._gpus = [
            GPUStats(index=index, model=model, memory_total_mb=memory_total_mb)
            for index in range(num_gpus)
        ]
        self._problem = ""
        self.calls = 0

    def get_gpu_stats(self) -> Sequence[GPUStats]:
        """The GPUs with their current measurements."""
        with self._lock:
            self.calls += 1
            if self._problem:
                raise RuntimeError(self._problem)
            return tuple(self._gpus)

    def set(self, index: int, **changes: Any) -> None:
        """Change values of one GPU: `load`, `temperature_c`, `memory_used_mb`, `healthy`."""
        with self._lock:
            self._gpus[index] = replace(self._gpus[index], **changes)

    def fail(self, problem: str = "no driver") -> None:
        """Make every read fail from now on; an empty text ends that."""
        with self._lock:
            self._problem = problem


class MockMetricsProvider(PlainMetrics):
    """Keeps all values in `told`, in order, in addition to the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, float]] = []

    def increment(self, name: str, value: float = 1.0) -> None:
        """Increment a counter."""
        self.told.append((name, value))
        super().increment(name, value)

    def observe(self, name: str, value: float) -> None:
        """Record a measurement."""
        self.told.append((name, value))
        super().observe(name, value)


class MockFileSystem:
    """Files in memory, by path."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        """Start with the given files."""
        self.files = dict(files or {})

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return path in self.files

    def read_text(self, path: str) -> str:
        """The text of a file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


class MockHealthMonitor:
    """Reports the given problems: `problems["disk"] = "full"`."""

    def __init__(self) -> None:
        """No problems at first."""
        self.problems: dict[str, str] = {}

    def check(self) -> Mapping[str, str]:
        """One passing check, and the problems."""
        return {"monitor": OK, **self.problems}
