"""What the control core asks of any predictor."""

from __future__ import annotations

from typing import Protocol

from gpu_scheduler.model.job import Job


class Predictor(Protocol):
    """Expected run times in milliseconds. The limit of a job is no business of a predictor."""

    def expect(self, job: Job, now_ms: int) -> int:
        """How long the job will run, at submission."""
        ...

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """How long it will run in all, now that it has run longer than expected."""
        ...

    def learn(self, job: Job, run_ms: int, now_ms: int) -> None:
        """The job ended by itself after this time."""
        ...
