"""What the control core asks of any predictor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

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


@runtime_checkable
class BatchPredictor(Protocol):
    """A predictor that is faster with many jobs that are alike."""

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """What `expect` says of each of these; they differ only in number, name and command."""
        ...


@runtime_checkable
class ReportsUncertainty(Protocol):
    """A predictor that tells what it knows from what it only guesses."""

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether nothing is known of how long a job runs that has run for so long."""
        ...


def is_guess(predictor: Predictor, job: Job, elapsed_ms: int = 0) -> bool:
    """Tell whether the end of a job is a mere guess: then nothing may be promised by it."""
    return _knows_doubt(predictor) and predictor.is_guess(job, elapsed_ms)


def _knows_doubt(predictor: Predictor) -> TypeGuard[ReportsUncertainty]:
    """Asked for every job of a forecast: to look for the methods takes longer than all the rest."""
    return _has_doubt(type(predictor))


@cache
def _has_doubt(kind: type[Predictor]) -> bool:
    return issubclass(kind, ReportsUncertainty)


def expect_alike(predictor: Predictor, jobs: Sequence[Job], now_ms: int) -> list[int]:
    """How long each of these jobs will run; they differ only in number, name and command."""
    if isinstance(predictor, BatchPredictor):
        return predictor.expect_alike(jobs, now_ms)
    return [predictor.expect(job, now_ms) for job in jobs]
