"""Counters of the control loop for metrics, and health checks of store, disk and clock.

A `HealthFinding` names a problem and its remedy; it disappears when its cause is gone.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_scheduler.control.clock import ClockStep, SchedulerClock
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.model.measurements import NodeFiles, NodeReadings
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
        self.clock_steps = 0
        self.clock_offset_ms = 0
        self.loads: dict[tuple[str, int], DeviceLoad] = {}
        self.files: dict[str, NodeFiles] = {}

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
REMEMBERED_S = 600.0
"""A step of the clock is reported for this long."""
REMEMBERED_GAP_S = 86_400.0
"""A gap between two leaders that was not counted as the wall clock showed it, for this long."""
LEAST_FREE_BYTES = 256 << 20
LEAST_FREE_PART = 0.01
LEAST_FILES = 1000
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem: the check, its severity, the finding and the remedy."""

    check: str
    status: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    commits: int
    seconds: float


class SelfMonitor:
    """Checks store, disk and clock of this server."""

    def __init__(
        self,
        directory: str,
        commits: Histogram,
        clock: SchedulerClock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        lost_lines: Callable[[], int] = lambda: 0,
        commit_age_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Watch the disk of a directory, commit times and the age of the running commit."""
        self._directory = directory
        self._commits = commits
        self._scheduler_clock = clock
        self._started_s = monotonic()
        self._monotonic = monotonic
        self._lost_lines = lost_lines
        self._commit_age_s = commit_age_s
        self._samples: deque[_Sample] = deque(maxlen=KEPT + 1)
        self._steps: deque[tuple[float, ClockStep]] = deque(maxlen=20)
        self.sample()

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.sample()

    def sample(self) -> None:
        """Take one sample of the commit counters."""
        commits = self._commits
        self._samples.append(_Sample(self._monotonic(), sum(commits.counts), commits.total))

    def note_step(self, step: ClockStep) -> None:
        """The wall clock was set."""
        self._steps.append((self._monotonic(), step))

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
        clock, now = self._scheduler_clock, self._monotonic()
        remedy = (
            "synchronise the clock (chrony, systemd-timesyncd); durations, time limits and usage "
            "are measured by another clock and stay correct"
        )
        held_s = clock.held_back_ms / 1000
        offset_s = clock.calendar.offset_ms / 1000
        if held_s:
            detail = (
                f"the clock was set {held_s:.0f} s ahead; begin times and reservations follow once "
                "it has stayed there"
            )
            yield HealthFinding("clock", DEGRADED, detail, remedy)
        elif offset_s < 0:
            detail = f"the clock is {-offset_s:.0f} s behind the latest stored time"
            yield HealthFinding("clock", DEGRADED, detail, remedy)
        elif offset_s:
            detail = f"the clock is {offset_s:.0f} s ahead of the scheduler's recorded times"
            yield HealthFinding("clock", DEGRADED, detail, remedy)
        recent = [step for at_s, step in self._steps if now - at_s < REMEMBERED_S]
        if recent:
            last_s = recent[-1].by_ms / 1000
            detail = f"the clock was set {len(recent)} times recently, last by {last_s:+.0f} s"
            yield HealthFinding("clock", DEGRADED, detail, remedy)
        gap = clock.gap
        if gap is not None and now - self._started_s < REMEMBERED_GAP_S:
            yield HealthFinding(
                "clock",
                DEGRADED,
                f"while no server led, the clock advanced by {gap.wall_ms / 1000:.0f} s, of which "
                f"{gap.counted_ms / 1000:.0f} s count",
                "check the clock and the usage of jobs that ran meanwhile; 'tgpu correct-usage' "
                "corrects it",
            )
