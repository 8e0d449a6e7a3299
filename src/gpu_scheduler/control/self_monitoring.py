"""Counters of the control loop for metrics, and health checks of store, disk and clock.

A `HealthFinding` says what is wrong and what to do; it disappears when its cause is gone.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.store.rows import SUBMITTED, EventRow, JobRow, NewJobs, Write

SHORT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_BOUNDS = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 86400.0)


class Histogram:
    """Counts of observations by upper bound; the last count is of larger ones."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start without observations."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class DeviceLoad:
    """Mean and maximum load of one device over all samples."""

    samples: int = 0
    sum_percent: int = 0
    most_percent: int = 0

    def add(self, percent: int) -> None:
        """Add one sample."""
        self.samples += 1
        self.sum_percent += percent
        self.most_percent = max(self.most_percent, percent)

    @property
    def mean_percent(self) -> float:
        """The mean load."""
        return self.sum_percent / self.samples if self.samples else 0.0


class LoopMetrics:
    """Counters since the start of the process."""

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
        self.failed_cycles = 0
        self.loads: dict[tuple[str, int], DeviceLoad] = {}

    @property
    def submissions(self) -> int:
        """Number of accepted jobs."""
        return self.jobs.get(SUBMITTED, 0)

    @property
    def preemptions(self) -> int:
        """Number of preempted attempts."""
        return self.jobs.get(JobState.PREEMPTED.value, 0)

    def note_readings(self, node_id: str, readings: NodeReadings) -> None:
        """Add the load of those devices of a node that report it."""
        for reading in readings.readings:
            if reading.load_percent is None and not reading.utilisation_percent:
                continue
            load = self.loads.setdefault((node_id, reading.index), DeviceLoad())
            load.add(reading.utilisation_percent)

    def note(self, writes: list[Write]) -> None:
        """Count the rows of a commit."""
        for write in writes:
            if isinstance(write, EventRow):
                counts = self.jobs if write.job_id else self.others
                counts[write.kind] = counts.get(write.kind, 0) + 1
            elif isinstance(write, NewJobs):
                self.jobs[SUBMITTED] = self.submissions + len(write.jobs)
            elif isinstance(write, JobRow) and write.state in ENDED and write.start_ms is not None:
                self.wait_seconds.add(write.waited_ms / 1000)


HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"
SAMPLE_S = 5.0
KEPT = 12
"""The number of samples kept: one minute."""
SLOW_S = 0.5
"""A mean commit time above this is reported as slow."""
FEW_COMMITS = 3
STUCK_S = 2.0
"""A commit that runs longer than this is reported as stuck."""
STEP_S = 2.0
REMEMBERED_S = 600.0
"""A step of the clock is reported for this long."""
LEAST_FREE_BYTES = 256 << 20
LEAST_FREE_PART = 0.01
LEAST_FILES = 1000
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem: which check, how severe, what was found, what to do."""

    check: str
    status: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    commits: int
    seconds: float
    offset_s: float


class SelfMonitor:
    """Checks store, disk and clock of this server. `own_now_ms` is the scheduler's own clock."""

    def __init__(
        self,
        directory: str,
        commits: Histogram,
        own_now_ms: Callable[[], int],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        lost_lines: Callable[[], int] = lambda: 0,
        commit_age_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Watch the disk of a directory, commit times and the age of the running commit."""
        self._directory = directory
        self._commits = commits
        self._own_now_ms = own_now_ms
        self._wall = wall
        self._monotonic = monotonic
        self._lost_lines = lost_lines
        self._commit_age_s = commit_age_s
        self._samples: deque[_Sample] = deque(maxlen=KEPT + 1)
        self._steps: deque[tuple[float, float]] = deque(maxlen=20)
        self.sample()

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.sample()

    def sample(self) -> None:
        """Take one sample of the clock and the commit counters."""
        now = self._monotonic()
        offset = self._wall() - now
        if self._samples:
            step = offset - self._samples[-1].offset_s
            if abs(step) > STEP_S:
                self._steps.append((now, step))
        commits = self._commits
        self._samples.append(_Sample(now, sum(commits.counts), commits.total, offset))

    def __call__(self) -> Iterator[HealthFinding]:
        """The current problems."""
        yield from self._store()
        yield from self._disk()
        yield from self._clock()
        if lost := self._lost_lines():
            yield HealthFinding(
                "logs",
                DEGRADED,
                f"{lost} lines of the server's log could not be written",
                "free disk space where the log is written (files.log_file, or server.log)",
            )

    def _store(self) -> Iterator[HealthFinding]:
        age_s = self._commit_age_s()
        if age_s > STUCK_S:
            yield HealthFinding(
                "store",
                DEGRADED,
                f"a commit has been running for {age_s:.0f} s",
                "the database, or the disk of the state directory, is slow or waits for a lock; "
                "until then no request is acknowledged and no job starts; running jobs continue",
            )
        first, last = self._samples[0], self._samples[-1]
        count = last.commits - first.commits
        if count >= FEW_COMMITS and (last.seconds - first.seconds) / count > SLOW_S:
            mean = (last.seconds - first.seconds) / count
            yield HealthFinding(
                "store",
                DEGRADED,
                f"commits take {mean:.1f} s on average",
                "the disk of the state directory is slow or busy ('tgpu doctor' measures it); put "
                "it on a local SSD, not on a network file system",
            )

    def _disk(self) -> Iterator[HealthFinding]:
        try:
            disk = os.statvfs(self._directory)
        except OSError as error:
            yield HealthFinding(
                "disk",
                DEGRADED,
                f"the state directory cannot be read: {error.strerror}",
                "check that its file system is mounted",
            )
            return
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        remedy = (
            "free disk space; retention.logs_days deletes job logs earlier, jobs.log_size_mb "
            "limits their size. On a full disk submissions are rejected and running jobs continue"
        )
        if free < min(LEAST_FREE_BYTES, size // 4) or free < LEAST_FREE_PART * size:
            detail = f"{free // MB:,} MiB are free on the disk of the state directory"
            yield HealthFinding("disk", DEGRADED, detail, remedy)
        if disk.f_files and disk.f_favail < LEAST_FILES:
            detail = f"{disk.f_favail} more files fit on the disk of the state directory"
            yield HealthFinding("disk", DEGRADED, detail, remedy)

    def _clock(self) -> Iterator[HealthFinding]:
        behind_s = self._own_now_ms() / 1000 - self._wall()
        remedy = (
            "synchronise the clock (chrony, systemd-timesyncd); the scheduler's own time never "
            "goes back, so time limits stay correct"
        )
        if behind_s > STEP_S:
            detail = f"the clock is {behind_s:.0f} s behind the latest stored time"
            yield HealthFinding("clock", DEGRADED, detail, remedy)
            return
        now = self._monotonic()
        recent = [step for at_s, step in self._steps if now - at_s < REMEMBERED_S]
        if recent:
            detail = f"the clock was set {len(recent)} times recently, last by {recent[-1]:+.0f} s"
            yield HealthFinding("clock", DEGRADED, detail, remedy)
