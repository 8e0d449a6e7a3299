"""Parts that a program can replace: GPUs, files, metrics, health.

Protocols and their defaults. `gpu_scheduler.testing` has implementations for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.source import (
    DetectedDevice,
    DevicesUnreadable,
    NodeInventory,
    Reading,
)

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUStats:
    """Measurements of one GPU; `load` is from 0 to 1."""

    index: int
    model: str = "GPU"
    memory_total_mb: int = 16_384
    memory_used_mb: int = 0
    load: float = 0.0
    temperature_c: int = 0
    healthy: bool = True


@runtime_checkable
class GPUProvider(Protocol):
    """Source of GPUs and their measurements. Called from a thread; may raise an error."""

    def get_gpu_stats(self) -> Sequence[GPUStats]:
        """All GPUs; each call returns the same GPUs."""
        ...


@runtime_checkable
class FileSystemProvider(Protocol):
    """Source of jobs.txt and llm_config.json."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        ...

    def read_text(self, path: str) -> str:
        """The text of a file; raises OSError."""
        ...


@runtime_checkable
class MetricsProvider(Protocol):
    """Receives metrics. Called from the scheduler's thread."""

    def increment(self, name: str, value: float = 1.0) -> None:
        """Increment a counter."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Record a measurement."""
        ...

    def get_metrics(self) -> Mapping[str, Any]:
        """All metrics so far."""
        ...


@runtime_checkable
class HealthMonitor(Protocol):
    """Additional health checks."""

    def check(self) -> Mapping[str, str]:
        """Checks by name, each with `ok` or with the problem."""
        ...


class RealFiles:
    """The files of this machine."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return Path(path).is_file()

    def read_text(self, path: str) -> str:
        """The text of a file, without a byte order mark."""
        return Path(path).read_text(encoding="utf-8-sig")


class PlainMetrics:
    """Counters, and the count, sum, minimum and maximum of measurements."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._measured: dict[str, dict[str, float]] = {}

    def increment(self, name: str, value: float = 1.0) -> None:
        """Increment a counter."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0.0) + value

    def observe(self, name: str, value: float) -> None:
        """Record a measurement."""
        with self._lock:
            old = self._measured.get(name, {"count": 0, "sum": 0.0, "min": value, "max": value})
            self._measured[name] = {
                "count": old["count"] + 1,
                "sum": old["sum"] + value,
                "min": min(old["min"], value),
                "max": max(old["max"], value),
            }

    def get_metrics(self) -> Mapping[str, Any]:
        """All metrics so far."""
        with self._lock:
            return {**self._counts, **{name: dict(m) for name, m in self._measured.items()}}


class ProvidedDevices:
    """A provider's GPUs as a device source of the agent."""

    def __init__(self, provider: GPUProvider) -> None:
        self._provider = provider

    def find(self) -> NodeInventory:
        """The inventory of this machine with the provider's GPUs."""
        host = Host()
        devices = tuple(
            DetectedDevice(
                index=stats.index,
                uuid=f"GPU-provided-{stats.index}",
                name=stats.model,
                model=stats.model,
                memory_mb=stats.memory_total_mb,
            )
            for stats in self._stats()
        )
        return NodeInventory(
            cpu_milli=host.cpu_milli(),
            memory_mb=host.memory_mb(),
            devices=devices,
            # As with declared GPUs, no process can stay on a GPU that does not exist.
            detection="declared",
        )

    def read(self) -> list[Reading]:
        """The current measurements."""
        return [
            Reading(
                index=stats.index,
                utilisation_percent=round(100 * stats.load),
                memory_used_mb=stats.memory_used_mb,
                temperature_c=stats.temperature_c,
                fault="" if stats.healthy else "reported as unhealthy by its provider",
            )
            for stats in self._stats()
        ]

    def close(self) -> None:
        """Nothing to release."""

    def _stats(self) -> list[GPUStats]:
        try:
            return sorted(self._provider.get_gpu_stats(), key=lambda stats: stats.index)
        except Exception as error:
            raise DevicesUnreadable(f"the GPU provider failed: {error}") from error
