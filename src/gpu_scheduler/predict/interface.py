"""The interface of run-time predictors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

from gpu_scheduler.model.job import Job


class Predictor(Protocol):
    """Expected run times in milliseconds. The core applies the time limit of a job itself."""

    def expect(self, job: Job, now_ms: int) -> int:
        """The expected run time at submission."""
        ...

    def begin(self, job: Job, now_ms: int) -> None:
        """An attempt of the job has started."""
        ...

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        """The expected total run time of a job that runs longer than expected."""
        ...

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """An attempt has ended: by itself after this total run time, or stopped (None)."""
        ...


@runtime_checkable
class BatchPredictor(Protocol):
    """A predictor that handles many similar jobs at once."""

    def expect_alike(self, jobs: Sequence[Job], now_ms: int) -> list[int]:
        """`expect` for each of these jobs, which differ only in number, name and command."""
        ...


@runtime_checkable
class ReportsUncertainty(Protocol):
    """A predictor that tells predictions from mere guesses."""

    def is_guess(self, job: Job, elapsed_ms: int) -> bool:
        """Tell whether the run time of the job, which has run for `elapsed_ms`, is a guess."""
        ...


class RunTimeBasis(NamedTuple):
    """What a run time is based on: runs of like jobs and how many, or what the user stated.

    `kind` is command (runs of the same command), script (of the same script or program), user or
    tenant (for jobs without name and command), estimate or limit; empty if nothing is known.
    """

    kind: str
    runs: int = 0


NOTHING_KNOWN = RunTimeBasis("")


@runtime_checkable
class PredictsAlike(Protocol):
    """A predictor that tells run times of like jobs apart from those of all jobs."""

    def run_time(self, job: Job, elapsed_ms: int) -> tuple[int, RunTimeBasis]:
        """The total run time of a job that has run for `elapsed_ms`, and its basis."""
        ...

    def forecast_run_time(self, job: Job, elapsed_ms: int) -> int:
        """The total run time that forecasts of starts count with."""
        ...


def is_guess(predictor: Predictor, job: Job, elapsed_ms: int = 0) -> bool:
    """Tell whether the end of a job is a guess; then no start time may be based on it."""
    if not _reports_uncertainty(type(predictor)):
        return False
    return cast("ReportsUncertainty", predictor).is_guess(job, elapsed_ms)


@cache
def _reports_uncertainty(kind: type[Predictor]) -> bool:
    """Cached by class: an `isinstance` check of a protocol for every job would be slow."""
    return issubclass(kind, ReportsUncertainty)


def run_time(
    predictor: Predictor, job: Job, elapsed_ms: int, now_ms: int
) -> tuple[int, RunTimeBasis]:
    """The total run time that users are told, and its basis."""
    if _predicts_alike(type(predictor)):
        return cast("PredictsAlike", predictor).run_time(job, elapsed_ms)
    if elapsed_ms:
        return predictor.exceed(job, elapsed_ms, now_ms), NOTHING_KNOWN
    return predictor.expect(job, now_ms), NOTHING_KNOWN


def forecast_run_time(predictor: Predictor, job: Job, elapsed_ms: int, now_ms: int) -> int:
    """The total run time that forecasts of starts count with."""
    if _predicts_alike(type(predictor)):
        return cast("PredictsAlike", predictor).forecast_run_time(job, elapsed_ms)
    return run_time(predictor, job, elapsed_ms, now_ms)[0]


@cache
def _predicts_alike(kind: type[Predictor]) -> bool:
    return issubclass(kind, PredictsAlike)


def expect_alike(predictor: Predictor, jobs: Sequence[Job], now_ms: int) -> list[int]:
    """Expected run times of jobs that differ only in number, name and command."""
    if isinstance(predictor, BatchPredictor):
        return predictor.expect_alike(jobs, now_ms)
    return [predictor.expect(job, now_ms) for job in jobs]
