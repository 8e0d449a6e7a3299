"""What a simulated scheduler may know of run times: the truth, the user's word, or history."""

from __future__ import annotations

from gpu_scheduler.model.job import Job

UNKNOWN_MS = 3_600_000
GROWTH = 2


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
