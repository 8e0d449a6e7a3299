"""What the control core asks of any predictor."""

from __future__ import annotations

from typing import Protocol

from gpu_scheduler.model.job import Job


class Predictor(Protocol):
    """Expected run times in milliseconds. The limit of a job is no business of a predictor."""

    def expect(self, job: Job, now_ms: int) -> int:
        """How long the job will run, at submission."""
        ...

    def begin(self, job: Job, now_ms: int) -> None:
        """An attempt of the job has started."""
        ...

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """How long it will run in all, now that it has run longer than expected."""
        ...

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """An attempt has ended: by itself after this time in all, or stopped by others (None)."""
        ...
