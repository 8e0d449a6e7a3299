"""What a program can put in the place of real things: GPUs, files, metrics, health.

Protocols, and what is used when nothing is given. `gpu_scheduler.testing` has others for tests.
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
    """One GPU as a provider sees it; `load` goes from 0 to 1."""

    index: int
    model: str = "GPU"
    memory_total_mb: int = 16_384
    memory_used_mb: int = 0
    load: float = 0.0
    temperature_c: int = 0
    healthy: bool = True


@runtime_checkable
class GPUProvider(Protocol):
    """Where GPUs and their figures come from. Asked from a thread; may raise when it cannot say."""

    def get_gpu_stats(self) -> Sequence[GPUStats]:
        """All GPUs, always the same ones, by index."""
        ...


@runtime_checkable
class FileSystemProvider(Protocol):
    """Where jobs.txt and llm_config.json are read from."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def read_text(self, path: str) -> str:
        """Its text; OSError if it cannot be read."""
        ...


@runtime_checkable
class MetricsProvider(Protocol):
    """Where figures go. Called from the scheduler's thread."""

    def increment(self, name: str, value: float = 1.0) -> None:
        """Something has happened."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Something was measured."""
        ...

    def get_metrics(self) -> Mapping[str, Any]:
        """What was gathered so far."""
        ...


@runtime_checkable
class HealthMonitor(Protocol):
    """What else has to be well."""

    def check(self) -> Mapping[str, str]:
        """Names of checks, each with `ok` or with what is wrong."""
        ...


class RealFiles:
    """The files of this machine."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return Path(path).is_file()

    def read_text(self, path: str) -> str:
        """Its text, without the mark that some editors put before it."""
        return Path(path).read_text(encoding="utf-8-sig")


class PlainMetrics:
    """Counts, and of what was measured the number, sum, least and most."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._measured: dict[str, dict[str, float]] = {}

    def increment(self, name: str, value: float = 1.0) -> None:
        """Something has happened."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0.0) + value

    def observe(self, name: str, value: float) -> None:
        """Something was measured."""
        with self._lock:
            old = self._measured.get(name, {"count": 0, "sum": 0.0, "min": value, "max": value})
            self._measured[name] = {
                "count": old["count"] + 1,
                "sum": old["sum"] + value,
                "min": min(old["min"], value),
                "max": max(old["max"], value),
            }

    def get_metrics(self) -> Mapping[str, Any]:
        """What was gathered so far."""
        with self._lock:
            return {**self._counts, **{name: dict(m) for name, m in self._measured.items()}}


class ProvidedDevices:
    """The GPUs of a provider, as a source of devices for the agent."""

    def __init__(self, provider: GPUProvider) -> None:
        """Nothing is asked yet."""
        self._provider = provider

    def find(self) -> NodeInventory:
        """What there is."""
        host = Host()
        devices = tuple(
            DetectedDevice(
                index=stats.index,
                uuid=f"GPU-provided-{stats.index}",
                name=stats.model,
                model=stats.model,
                memory_mb=stats.memory_total_mb,
            )
            for stats in self._asked()
        )
        return NodeInventory(
            cpu_milli=host.cpu_milli(),
            memory_mb=host.memory_mb(),
            devices=devices,
            # Jobs leave nothing behind on what is not there, so nobody waits for that.
            detection="declared",
        )

    def read(self) -> list[Reading]:
        """How they do."""
        return [
            Reading(
                index=stats.index,
                utilisation_percent=round(100 * stats.load),
                memory_used_mb=stats.memory_used_mb,
                temperature_c=stats.temperature_c,
                fault="" if stats.healthy else "its provider says that it is not healthy",
            )
            for stats in self._asked()
        ]

    def close(self) -> None:
        """There is nothing to let go of."""

    def _asked(self) -> list[GPUStats]:
        try:
            return sorted(self._provider.get_gpu_stats(), key=lambda stats: stats.index)
        except Exception as error:
            raise DevicesUnreadable(f"the GPU provider cannot say: {error}") from error
