"""Wall time and CPU time of the same piece of code, the best of several laps.

The best lap is the one that other processes disturbed least. The collector stays on, as it is in
a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter, process_time


class Stopwatch:
    """Laps of the same work. Times are in seconds."""

    def __init__(self) -> None:
        """Start without laps."""
        self.walls: list[float] = []
        self.cpus: list[float] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        """Time what stands inside."""
        cpu = process_time()
        wall = perf_counter()
        try:
            yield
        finally:
            self.walls.append(perf_counter() - wall)
            self.cpus.append(process_time() - cpu)

    @property
    def wall(self) -> float:
        """The best wall time."""
        return min(self.walls)

    @property
    def cpu(self) -> float:
        """The best CPU time."""
        return min(self.cpus)

    @property
    def usual_wall(self) -> float:
        """The median wall time: far above the best on a busy machine."""
        return median(self.walls)


def timed(work: Callable[[], object], repeats: int) -> Stopwatch:
    """Do the same work several times."""
    watch = Stopwatch()
    for _ in range(repeats):
        with watch.lap():
            work()
    return watch
