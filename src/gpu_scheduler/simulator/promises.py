"""How well the forecast kept its word: promised first starts against real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_scheduler.simulator.distribution import percentile
from gpu_scheduler.simulator.outcomes import NO_PROMISE, Outcomes

SHORT_WAIT_MS = 60_000
"""Who waited no longer than this had no use for a forecast."""
TOLERANCE_MS = 10 * 60_000
TOLERANCE_PERCENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastError:
    """Promises against first starts, for jobs that were promised a start and waited for it.

    A promise is kept if the job started within 10 % of the promised wait or within 10 minutes,
    whichever is more. Kept, early and late add up to 100 %.
    """

    jobs: int
    kept_percent: float
    early_percent: float
    late_percent: float
    median_absolute_error_s: float


def forecast_error(outcomes: Outcomes) -> ForecastError | None:
    """Compare promises with first starts; `None` if no job that waited had a promise."""
    errors: list[int] = []
    early = late = 0
    for error_ms, tolerance_ms in _errors(outcomes):
        errors.append(abs(error_ms))
        if error_ms > tolerance_ms:
            late += 1
        elif error_ms < -tolerance_ms:
            early += 1
    if not errors:
        return None
    errors.sort()
    return ForecastError(
        jobs=len(errors),
        kept_percent=100 * (len(errors) - early - late) / len(errors),
        early_percent=100 * early / len(errors),
        late_percent=100 * late / len(errors),
        median_absolute_error_s=percentile(errors, 50) / 1000,
    )


def promise_errors_ms(outcomes: Outcomes) -> Iterator[int]:
    """First start minus promise for each job that counts; negative is early."""
    for error_ms, _ in _errors(outcomes):
        yield error_ms


def _errors(outcomes: Outcomes) -> Iterator[tuple[int, int]]:
    """The error of each promise and how much error is allowed."""
    for submit_ms, start_ms, promised_ms in zip(
        outcomes.numbers["submit_ms"],
        outcomes.numbers["first_start_ms"],
        outcomes.numbers["promised_start_ms"],
        strict=True,
    ):
        if promised_ms != NO_PROMISE and start_ms - submit_ms > SHORT_WAIT_MS:
            share_ms = (promised_ms - submit_ms) * TOLERANCE_PERCENT // 100
            yield start_ms - promised_ms, share_ms if share_ms > TOLERANCE_MS else TOLERANCE_MS
