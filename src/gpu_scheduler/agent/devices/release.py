"""Whether the memory of a device came back after our jobs.

Readings come in, memory that nobody gave back and nobody holds goes out. What was in use before our
jobs came, without a process that one could see, was never ours. Of a device that does not say what
its processes use, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_scheduler.agent.devices.inventory import Process, Reading


@dataclass(slots=True)
class _Memory:
    """`before_mb` was in use without a process before our jobs; None: that was not seen."""

    before_mb: int | None = None
    used_by_us: bool = False


class Releases:
    """Keeps one device from the next job until what the last one used is free."""

    def __init__(self, tolerance_mb: int) -> None:
        """So much more than before does not count."""
        self._tolerance_mb = tolerance_mb
        self._memories: dict[int, _Memory] = {}

    def begin(self, indices: Iterable[int]) -> None:
        """Work of ours is about to use these devices."""
        for index in indices:
            self._of(index).used_by_us = True

    def forgive(self, index: int) -> None:
        """From now on what is in use there counts as never ours."""
        self._memories.pop(index, None)

    def left_mb(self, reading: Reading, owned: list[tuple[Process, str]]) -> int:
        """What our jobs have not given back, as of this reading; 0 while one is still there."""
        memory = self._of(reading.index)
        if any(owner for _, owner in owned):
            memory.used_by_us = True
            return 0
        held = [process.memory_mb for process in reading.processes]
        if reading.memory_used_mb is None or None in held:
            return 0
        unheld_mb = max(0, reading.memory_used_mb - sum(mb for mb in held if mb is not None))
        if memory.used_by_us and memory.before_mb is not None:
            more_mb = unheld_mb - memory.before_mb
            if more_mb > self._tolerance_mb:
                return more_mb
        memory.used_by_us = False
        memory.before_mb = unheld_mb
        return 0

    def _of(self, index: int) -> _Memory:
        return self._memories.setdefault(index, _Memory())
