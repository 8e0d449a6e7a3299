"""What the loop counts while it works. Cheap to keep; metrics are made from it when asked for."""

from __future__ import annotations

from bisect import bisect_left

from gpu_scheduler.model.readings import NodeReadings
from gpu_scheduler.model.states import ENDED, JobState
from gpu_scheduler.store.rows import SUBMITTED, EventRow, JobRow, NewJobs, Write

SHORT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_BOUNDS = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 86400.0)


class Histogram:
    """How many observations were at most each bound; the last count is of what was larger."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start with nothing seen."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Load:
    """How busy one device was, over all looks at it."""

    __slots__ = ("looks", "most_percent", "sum_percent")

    def __init__(self) -> None:
        """Never looked at."""
        self.looks = 0
        self.sum_percent = 0
        self.most_percent = 0

    def add(self, percent: int) -> None:
        """One more look."""
        self.looks += 1
        self.sum_percent += percent
        self.most_percent = max(self.most_percent, percent)

    @property
    def mean_percent(self) -> float:
        """The mean of all looks."""
        return self.sum_percent / self.looks if self.looks else 0.0


class Tallies:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        """Start at zero."""
        self.cycle_seconds = Histogram(SHORT_BOUNDS)
        self.commit_seconds = Histogram(SHORT_BOUNDS)
        self.wait_seconds = Histogram(LONG_BOUNDS)
        self.jobs: dict[str, int] = {}
        self.others: dict[str, int] = {}
        self.messages = 0
        self.refusals = 0
        self.failed_commits = 0
        self.loads: dict[tuple[str, int], Load] = {}

    @property
    def submissions(self) -> int:
        """Accepted jobs."""
        return self.jobs.get(SUBMITTED, 0)

    @property
    def preemptions(self) -> int:
        """Attempts that were preempted."""
        return self.jobs.get(JobState.PREEMPTED.value, 0)

    def note_readings(self, node_id: str, readings: NodeReadings) -> None:
        """Remember how busy the devices of a node are, of those that tell it."""
        for reading in readings.readings:
            if reading.load_percent is None and not reading.utilisation_percent:
                continue
            load = self.loads.setdefault((node_id, reading.index), Load())
            load.add(reading.utilisation_percent)

    def note(self, writes: list[Write]) -> None:
        """Count what was committed."""
        for write in writes:
            if isinstance(write, EventRow):
                counts = self.jobs if write.job_id else self.others
                counts[write.kind] = counts.get(write.kind, 0) + 1
            elif isinstance(write, NewJobs):
                self.jobs[SUBMITTED] = self.submissions + len(write.jobs)
            elif isinstance(write, JobRow) and write.state in ENDED and write.start_ms is not None:
                self.wait_seconds.add(write.waited_ms / 1000)
