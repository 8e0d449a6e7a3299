"""For tests of programs with a `LocalScheduler`: GPUs, files, metrics and health of their own.

    from gpu_scheduler import LocalScheduler, SchedulerConfig
    from gpu_scheduler.testing import MockGPUProvider, MockMetricsProvider

    config = SchedulerConfig(num_gpus=2, queue_size_limit=10)
    with LocalScheduler(config, gpu_provider=MockGPUProvider(num_gpus=2)) as scheduler:
        job_id = scheduler.add_job("/path/script.py", args=["--test"])

What runs on such GPUs are real processes all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_scheduler.server.local.providers import OK, GPUStats, PlainMetrics

__all__ = [
    "GPUStats",
    "MockFileSystem",
    "MockGPUProvider",
    "MockHealthMonitor",
    "MockMetricsProvider",
]


class MockGPUProvider:
    """So many GPUs of one kind. `set` lets one become hot, busy or sick; `fail` all of them."""

    def __init__(
        self, num_gpus: int = 2, *, model: str = "A100", memory_total_mb: int = 81_920
    ) -> None:
        """All of them idle and well."""
        self._lock = threading.Lock()
        self._gpus = [
            GPUStats(index=index, model=model, memory_total_mb=memory_total_mb)
            for index in range(num_gpus)
        ]
        self._problem = ""
        self.calls = 0

    def get_gpu_stats(self) -> Sequence[GPUStats]:
        """All GPUs as they were set."""
        with self._lock:
            self.calls += 1
            if self._problem:
                raise RuntimeError(self._problem)
            return tuple(self._gpus)

    def set(self, index: int, **changes: Any) -> None:
        """Change some figures of one GPU: `load`, `temperature_c`, `memory_used_mb`, `healthy`."""
        with self._lock:
            self._gpus[index] = replace(self._gpus[index], **changes)

    def fail(self, problem: str = "no driver") -> None:
        """From now on nothing can be read; an empty text mends that."""
        with self._lock:
            self._problem = problem


class MockMetricsProvider(PlainMetrics):
    """Keeps everything that it was told, in order, besides the sums."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__()
        self.told: list[tuple[str, float]] = []

    def increment(self, name: str, value: float = 1.0) -> None:
        """Something has happened."""
        self.told.append((name, value))
        super().increment(name, value)

    def observe(self, name: str, value: float) -> None:
        """Something was measured."""
        self.told.append((name, value))
        super().observe(name, value)


class MockFileSystem:
    """Files that are only texts by path."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        """These files, to begin with."""
        self.files = dict(files or {})

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self.files

    def read_text(self, path: str) -> str:
        """Its text."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


class MockHealthMonitor:
    """Says what it was told to say: `problems["disk"] = "full"`."""

    def __init__(self) -> None:
        """All is well."""
        self.problems: dict[str, str] = {}

    def check(self) -> Mapping[str, str]:
        """One check, and the problems."""
        return {"monitor": OK, **self.problems}
