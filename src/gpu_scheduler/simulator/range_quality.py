"""How good the ranges of forecast starts are: outcomes come in, coverage and scores go out.

The ranges are those that the server would have shown: its own calibration learns from each start at
the time of that start, and gives each range at the submission of the job. They are compared with
plain 10th and 90th percentiles of the last waits of jobs with as many GPUs. The interval score of a
range is its width plus ten times the distance by which the start missed it (for a central range of
80 %); a wide range does not win by its width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_scheduler.predict.start_ranges import HORIZONS_MS, LEAST_WAIT_MS, StartRanges, horizon
from gpu_scheduler.simulator.metrics import mean, percentile
from gpu_scheduler.simulator.outcomes import NO_PROMISE, Outcomes

MISS_FACTOR = 10
"""2 / (1 - 0.8): the usual weight of a miss in the interval score of a central range of 80 %."""
RECENT_WAITS = 200
FEWEST_WAITS = 10
UNTIL_KNOWN_MS = (60_000, 86_400_000)
"""The range of the comparison before any job has waited."""
FORECAST = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonQuality:
    """The forecasts of one length: waits up to so many seconds (None: longer than all others)."""

    up_to_s: int | None
    jobs: int
    covered_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuality:
    """The ranges given at submission to jobs that then waited over a minute."""

    jobs: int
    covered_percent: float
    early_percent: float
    late_percent: float
    median_width_s: float
    interval_score_s: float
    recent_waits_score_s: float
    better_percent: float
    horizons: tuple[HorizonQuality, ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    """When a job was submitted and started, and the wait that was forecast, if it was."""

    id: str
    submit_ms: int
    start_ms: int
    gpu_milli: int
    forecast_ms: int | None

    @property
    def wait_ms(self) -> int:
        return self.start_ms - self.submit_ms


def range_quality(outcomes: Outcomes) -> RangeQuality | None:
    """Give each forecast its range in the order of time; None if no job that waited had one."""
    ranges, recent = StartRanges(), _RecentWaits()
    judged: list[tuple[_Wait, tuple[int, int], tuple[int, int]]] = []
    for at_ms, is_start, job in _events(_waits(outcomes)):
        if is_start:
            ranges.end(job.id, at_ms)
            if job.wait_ms > LEAST_WAIT_MS:
                recent.learn(job)
        elif job.forecast_ms is not None:
            if job.wait_ms > LEAST_WAIT_MS:
                found = ranges.range_of(FORECAST, job.forecast_ms, at_ms)
                judged.append((job, (found.earliest_ms, found.latest_ms), recent.range_of(job)))
            ranges.begin(job.id, FORECAST, job.forecast_ms, at_ms)
    if not judged:
        return None
    early = sum(job.wait_ms < given[0] for job, given, _ in judged)
    late = sum(job.wait_ms > given[1] for job, given, _ in judged)
    score = mean([_interval_score_s(given, job.wait_ms) for job, given, _ in judged])
    plain = mean([_interval_score_s(plain, job.wait_ms) for job, _, plain in judged])
    return RangeQuality(
        jobs=len(judged),
        covered_percent=100 * (len(judged) - early - late) / len(judged),
        early_percent=100 * early / len(judged),
        late_percent=100 * late / len(judged),
        median_width_s=percentile(sorted(g[1] - g[0] for _, g, _ in judged), 50) / 1000,
        interval_score_s=score,
        recent_waits_score_s=plain,
        better_percent=100 * (1 - score / plain) if plain else 0.0,
        horizons=tuple(_by_horizon((job, given) for job, given, _ in judged)),
    )


class _RecentWaits:
    """Plain quantiles of the last waits of jobs with as many GPUs; of all jobs if those are few."""

    def __init__(self) -> None:
        self._by_gpus: dict[int | None, deque[int]] = {}

    def learn(self, job: _Wait) -> None:
        for key in (job.gpu_milli, None):
            self._by_gpus.setdefault(key, deque(maxlen=RECENT_WAITS)).append(job.wait_ms)

    def range_of(self, job: _Wait) -> tuple[int, int]:
        alike = self._by_gpus.get(job.gpu_milli, deque())
        waits = sorted(alike if len(alike) >= FEWEST_WAITS else self._by_gpus.get(None, deque()))
        if not waits:
            return UNTIL_KNOWN_MS
        return round(percentile(waits, 10)), round(percentile(waits, 90))


def _waits(outcomes: Outcomes) -> Iterator[_Wait]:
    numbers = outcomes.numbers
    for place, (submit_ms, start_ms, gpu_milli, promised_ms) in enumerate(
        zip(
            numbers["submit_ms"],
            numbers["first_start_ms"],
            numbers["gpu_milli"],
            numbers["promised_start_ms"],
            strict=True,
        )
    ):
        forecast_ms = None if promised_ms == NO_PROMISE else promised_ms - submit_ms
        yield _Wait(str(place), submit_ms, start_ms, gpu_milli, forecast_ms)


def _events(waits: Iterable[_Wait]) -> Iterator[tuple[int, bool, _Wait]]:
    """Starts and submissions in the order of time; at the same time, starts come first."""
    events: list[tuple[int, int, int, _Wait]] = []
    for place, job in enumerate(waits):
        events += (job.start_ms, 0, place, job), (job.submit_ms, 1, place, job)
    events.sort(key=lambda event: event[:3])
    for at_ms, is_submission, _, job in events:
        yield at_ms, not is_submission, job


def _interval_score_s(given: tuple[int, int], wait_ms: int) -> float:
    earliest_ms, latest_ms = given
    missed_ms = max(0, earliest_ms - wait_ms) + max(0, wait_ms - latest_ms)
    return (latest_ms - earliest_ms + MISS_FACTOR * missed_ms) / 1000


def _by_horizon(judged: Iterable[tuple[_Wait, tuple[int, int]]]) -> Iterator[HorizonQuality]:
    kept: list[list[bool]] = [[] for _ in range(len(HORIZONS_MS) + 1)]
    for job, (earliest_ms, latest_ms) in judged:
        place = horizon(job.forecast_ms or 0)
        kept[place].append(earliest_ms <= job.wait_ms <= latest_ms)
    bounds = [*(bound_ms // 1000 for bound_ms in HORIZONS_MS), None]
    for up_to_s, hits in zip(bounds, kept, strict=True):
        if hits:
            percent = 100 * sum(hits) / len(hits)
            yield HorizonQuality(up_to_s=up_to_s, jobs=len(hits), covered_percent=percent)
