"""Run-time predictors for simulations: true run times, user estimates, or past jobs."""

from __future__ import annotations

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.history import MEDIAN, History

UNKNOWN_MS = 3_600_000
GROWTH = 2
OVERDUE_MS = 60_000


class Oracle:
    """Returns the true run time of every job, for policies of the literature that assume it."""

    def __init__(self) -> None:
        """Start empty: `World` adds the true run time when a job arrives."""
        self.run_ms: dict[str, int] = {}

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002 - the true run time never changes
        """The true run time."""
        return self.run_ms[job.id]

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:  # noqa: ARG002
        """The true run time; a job exceeds it only by the cost of preemptions."""
        return max(self.run_ms[job.id], elapsed_ms + 1)

    def begin(self, job: Job, now_ms: int) -> None:
        """Do nothing: this predictor does not use start times."""

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:  # noqa: ARG002
        """Forget a job that ran to its end."""
        if run_ms is not None and job.array is None:
            self.run_ms.pop(job.id, None)


class Stated:
    """Uses the values that the user stated: the estimate, else the limit, else an hour."""

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """The run time stated at submission."""
        return job.estimate_ms or job.max_runtime_ms or UNKNOWN_MS

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The limit (or estimate) if it is not exceeded yet, else twice the elapsed time."""
        stated = job.max_runtime_ms or self.expect(job, now_ms)
        return stated if stated > elapsed_ms else elapsed_ms * GROWTH + 1

    def begin(self, job: Job, now_ms: int) -> None:
        """Do nothing: this predictor does not use start times."""

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Do nothing: this predictor does not learn from past jobs."""


class Medians(History):
    """History that predicts the median, which gives the best forecasts of start times."""

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """The median run time of jobs like this one."""
        return self.quantile(job, MEDIAN)


class AsTold(History):
    """History as the server tells it to users: run times of like jobs only.

    Forecasts with it expect arrivals as well.
    """


class UserMeans:
    """The mean run time of the user's past jobs: a simple baseline for comparisons."""

    def __init__(self) -> None:
        """Start without past jobs."""
        self._sums: dict[tuple[str, str], tuple[int, int]] = {}

    def expect(self, job: Job, now_ms: int) -> int:  # noqa: ARG002
        """The mean, or an hour for a new user."""
        total, count = self._sums.get((job.tenant, job.user), (0, 0))
        return max(1, total // count) if count else UNKNOWN_MS

    def begin(self, job: Job, now_ms: int) -> None:
        """Do nothing: this predictor does not use start times."""

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The mean, or the elapsed time plus a minute if that is more."""
        return max(elapsed_ms + OVERDUE_MS, self.expect(job, now_ms))

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:  # noqa: ARG002
        """Add the run time of a job that ran to its end."""
        if run_ms is not None:
            total, count = self._sums.get((job.tenant, job.user), (0, 0))
            self._sums[job.tenant, job.user] = (total + run_ms, count + 1)
