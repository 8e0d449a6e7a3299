"""Ranges around forecast starts: a forecast wait comes in; a range of four in five starts goes out.

A forecast is one number. How long jobs with such a forecast really waited is learnt from those that
have started: the last 2,000, each weighted by how near its forecast was to the new one, so that
every horizon has its own errors, and taken over to the new forecast by the slope of waits over
forecasts that these jobs have had. Their 10th, 50th and 90th percentile are the earliest, likely
and latest start. A job that still waits counts as one that waits longer than it has so far (the
estimator of Kaplan and Meier); otherwise long waits, which are known last, would be missing. Prior
errors stand in until enough is known. The same forecasts and starts in the same order give the same
ranges.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

HORIZONS_MS = (600_000, 3_600_000, 14_400_000, 57_600_000)
"""Coverage is reported for forecast waits up to 10 minutes, 1, 4 and 16 hours, and longer ones."""
LEAST_WAIT_MS = 60_000
"""A job that waited no longer needed no forecast; it is not learnt from."""
OFFSET_MS = 60_000
"""Added to waits, so that seconds more or less do not count as a large ratio."""
KEPT = 2_000
SLOPE_WEIGHT = 100.0
"""That waits do not follow their forecasts is assumed with the weight of this many jobs whose
forecasts differ by a factor of e."""
BUCKETS = 3
"""Forecasts are judged alike within a third of a unit of the natural logarithm."""
FARTHEST = 4.0
"""Waits whose forecast differs by a larger factor (in logarithms) do not count."""
LEVELS = (0.1, 0.5, 0.9)
PRIOR = (-2.4, -1.6, -1.2, -0.75, -0.35, 0.0, 0.35, 0.75, 1.2, 1.6, 2.4)
"""Logarithms of wait over forecast where nothing is known: half within a factor of two."""
PRIOR_WEIGHT = 5.0
"""The prior counts as much as this many jobs."""
FRESH_MS = 60_000
"""For so long, waits that go on do not change a range that was computed."""


class StartRange(NamedTuple):
    """Waits in milliseconds: of ten jobs, one starts before the first and one after the last."""

    earliest_ms: int
    likely_ms: int
    latest_ms: int


class _Open(NamedTuple):
    """A forecast whose job still waits."""

    basis: str
    log_forecast: float
    made_ms: int


class _Point(NamedTuple):
    """A logarithm of wait over forecast; with `goes_on` the wait is at least that. They are sorted
    by this, so that at one value an ended wait comes first.
    """

    log_ratio: float
    goes_on: bool
    weight: float


class StartRanges:
    """Learns the errors of forecast starts, and gives the range of a new one."""

    def __init__(self) -> None:
        """Start with the prior."""
        self._open: dict[str, _Open] = {}
        self._ended: dict[str, deque[tuple[float, float]]] = {}
        self._learnt = 0
        self._known: dict[tuple[str, int], tuple[tuple[int, int], list[float]]] = {}

    def begin(self, job_id: str, basis: str, forecast_ms: int, now_ms: int) -> None:
        """A job is forecast to wait so long from now on."""
        self._open[job_id] = _Open(basis, _log(forecast_ms), now_ms)

    def end(self, job_id: str, now_ms: int) -> None:
        """The job has started."""
        made = self._open.pop(job_id, None)
        if made is not None and now_ms - made.made_ms > LEAST_WAIT_MS:
            ended = self._ended.setdefault(made.basis, deque(maxlen=KEPT))
            ended.append((made.log_forecast, _log(now_ms - made.made_ms)))
            self._learnt += 1

    def withdraw(self, job_id: str) -> None:
        """The forecast of the job no longer counts."""
        self._open.pop(job_id, None)

    def range_of(self, basis: str, forecast_ms: int, now_ms: int) -> StartRange:
        """The range of a job that is forecast to wait so long from now on."""
        log_forecast = _log(forecast_ms)
        bucket = round(log_forecast * BUCKETS)
        stamp = self._learnt, now_ms // FRESH_MS
        known = self._known.get((basis, bucket))
        if known is None or known[0] != stamp:
            points = self._points(basis, bucket / BUCKETS, now_ms)
            known = self._known[basis, bucket] = stamp, _quantiles(points)
        waits = [round(math.exp(log_forecast + log_ratio)) - OFFSET_MS for log_ratio in known[1]]
        return StartRange(*(max(0, wait_ms) for wait_ms in waits))

    def _points(self, basis: str, log_forecast: float, now_ms: int) -> list[_Point]:
        """What is known of waits with about this forecast, as sorted ratios."""
        near = [
            (one_forecast, log_wait, math.exp(-abs(one_forecast - log_forecast)))
            for one_forecast, log_wait in self._ended.get(basis, ())
            if abs(one_forecast - log_forecast) < FARTHEST
        ]
        slope = _slope(near)
        base = (1 - slope) * log_forecast
        points = [_Point(log_ratio, False, PRIOR_WEIGHT / len(PRIOR)) for log_ratio in PRIOR]
        for one_forecast, log_wait, weight in near:
            points.append(_Point(log_wait - slope * one_forecast - base, False, weight))
        for made in self._open.values():
            far = abs(made.log_forecast - log_forecast)
            waited_ms = now_ms - made.made_ms
            if made.basis == basis and far < FARTHEST and waited_ms > LEAST_WAIT_MS:
                ratio = _log(waited_ms) - slope * made.log_forecast - base
                points.append(_Point(ratio, True, math.exp(-far)))
        points.sort()
        return points


def horizon(forecast_ms: int) -> int:
    """The place of a forecast wait among the horizons; the last one is beyond all of them."""
    return sum(forecast_ms > bound_ms for bound_ms in HORIZONS_MS)


def _log(wait_ms: int) -> float:
    return math.log(max(0, wait_ms) + OFFSET_MS)


def _slope(near: list[tuple[float, float, float]]) -> float:
    """How much longer a wait is (in logarithms) whose forecast is longer by one.

    Ridge regression over forecasts, waits and weights. Where forecasts are good it is near 1, and
    waits are taken over in proportion; where they say little it is near 0.
    """
    total = sum(weight for _, _, weight in near)
    if not total:
        return 0.0
    mean_forecast = sum(forecast * weight for forecast, _, weight in near) / total
    mean_wait = sum(wait * weight for _, wait, weight in near) / total
    spread = shared = 0.0
    for forecast, wait, weight in near:
        off = forecast - mean_forecast
        spread += weight * off * off
        shared += weight * off * (wait - mean_wait)
    return min(1.0, max(0.0, shared / (spread + SLOPE_WEIGHT)))


def _quantiles(points: list[_Point]) -> list[float]:
    """The values at `LEVELS`: where the share of waits that go on falls below the rest."""
    at_risk = sum(point.weight for point in points)
    going_on = 1.0
    found: list[float] = []
    for point in points:
        if not point.goes_on and at_risk > 0:
            going_on *= max(0.0, 1 - point.weight / at_risk)
            while len(found) < len(LEVELS) and going_on <= 1 - LEVELS[len(found)] + 1e-9:
                found.append(point.log_ratio)
        at_risk -= point.weight
    longest = points[-1].log_ratio
    return found + [longest] * (len(LEVELS) - len(found))
