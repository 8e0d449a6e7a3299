"""What a simulated scheduler may know of run times: the truth, the user's word, or history."""

from __future__ import annotations

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.history import MEDIAN, History

UNKNOWN_MS = 3_600_000
GROWTH = 2
OVERDUE_MS = 60_000


class Oracle:
    """Knows how long every job will run. For policies of the literature that assume so."""

    def __init__(self) -> None:
        """The simulator tells the truth when a job arrives."""
        self.run_ms: dict[str, int] = {}

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002 - the truth never changes
        """The truth."""
        return self.run_ms[job.id]

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:  # noqa: ARG002
        """A job exceeds the truth only by the cost of preemptions."""
        return max(self.run_ms[job.id], elapsed_ms + 1)

    def begin(self, job: Job, now_ms: int) -> None:
        """Nothing to note."""

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:  # noqa: ARG002
        """Nothing to learn; a job that has ended by itself can be forgotten."""
        if run_ms is not None and job.array is None:
            self.run_ms.pop(job.id, None)


class Stated:
    """Believes the user: the estimate, else the limit, else an hour."""

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """What was said at submission."""
        return job.estimate_ms or job.max_runtime_ms or UNKNOWN_MS

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The limit if there is one, else twice what it has run."""
        stated = job.max_runtime_ms or self.expect(job, now_ms)
        return stated if stated > elapsed_ms else elapsed_ms * GROWTH + 1

    def begin(self, job: Job, now_ms: int) -> None:
        """Nothing to note."""

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """People are believed whatever happened before."""


class Medians(History):
    """History, asked for the median: the statistic that start promises are best made from."""

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """The median run time of jobs like this one."""
        return self.quantile(job, MEDIAN)


class UserMeans:
    """The mean of all that the user ran before: the usual simple estimate, to compare with."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._sums: dict[tuple[str, str], tuple[int, int]] = {}

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """The mean, or an hour for a new user."""
        total, count = self._sums.get((job.tenant, job.user), (0, 0))
        return max(1, total // count) if count else UNKNOWN_MS

    def begin(self, job: Job, now_ms: int) -> None:
        """Nothing to note."""

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The mean; a minute more for a job that has passed it."""
        return max(elapsed_ms + OVERDUE_MS, self.expect(job, now_ms))

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:  # noqa: ARG002
        """Count a job that ended by itself."""
        if run_ms is not None:
            total, count = self._sums.get((job.tenant, job.user), (0, 0))
            self._sums[job.tenant, job.user] = (total + run_ms, count + 1)
