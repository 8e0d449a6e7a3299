"""The predictor from history: a typical time for the order, a distribution for promises."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.spread import Spread
from gpu_scheduler.predict.typical import Typical

MEDIAN = 50


class History:
    """Learns from every job that ends by itself. Never says more than a job's limit."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._typical = Typical()
        self._spread = Spread()

    def expect(self, job: Job, now_ms: int) -> int:
        """The typical run time of jobs like this one, at submission.

        As long as nothing like it has been seen, what its owner says is believed.
        """
        stated_ms = _stated_ms(job)
        if stated_ms and not self._typical.knows(job):
            return stated_ms
        expected_ms = self._typical.expect(job, now_ms)
        return min(expected_ms, job.max_runtime_ms) if job.max_runtime_ms else expected_ms

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """The same for many jobs that differ only in number, name and command."""
        stated_ms = _stated_ms(jobs[0])
        if stated_ms and not self._typical.knows(jobs[0]):
            # Most names were never seen, as every run of a sweep has its own.
            return [self.expect(job, now_ms) for job in jobs]
        expected = self._typical.expect_alike(jobs, now_ms)
        most_ms = jobs[0].max_runtime_ms
        return [min(expected_ms, most_ms) for expected_ms in expected] if most_ms else expected

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether nobody has said how long it runs, and nothing like it has been seen."""
        return _stated_ms(job) <= elapsed_ms and not self._typical.knows(job)

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:  # noqa: ARG002
        """The median of jobs like it that ran longer than it has."""
        return self.quantile(job, MEDIAN, elapsed_ms)

    def quantile(self, job: Job, percent: int, elapsed_ms: int = 0) -> int:
        """A run time that so many per cent of such jobs stay within, given what it ran so far."""
        return max(elapsed_ms + 1, self._spread.quantile(job, percent, elapsed_ms))

    def begin(self, job: Job, now_ms: int) -> None:
        """An attempt has started."""
        self._typical.begin(job, now_ms)

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Learn from a job that ended by itself."""
        self._typical.end(job, run_ms, now_ms)
        if run_ms is not None:
            self._typical.learn(job, run_ms)
            self._spread.learn(job, run_ms)


def _stated_ms(job: Job) -> int:
    """What the owner says: the estimate, else the limit; 0 if nothing."""
    stated_ms = job.estimate_ms or job.max_runtime_ms
    return min(stated_ms, job.max_runtime_ms) if job.max_runtime_ms else stated_ms
