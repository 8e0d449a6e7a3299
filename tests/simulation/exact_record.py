"""Exact records of golden runs: every figure to the last digit, and a digest of all outcomes.

The published results that the golden tests compare with need tolerances. These records have none:
a change of the code that changes any decision of the scheduler changes a record.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.simulator.experiment import Filling
from gpu_scheduler.simulator.metrics import Measures, forecast_error, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.range_quality import RangeQuality
from tests.snapshots import as_json, check_stored

FOLDER = Path(__file__).parent / "exact"
RECORDED_ON = (3, 11)
"""The Python version of the records. Since 3.12, `sum` rounds floats in another way."""
ROUNDING = 1e-12


def check_run(name: str, run: Run, measures: Measures | None = None) -> None:
    """Compare all metrics of a run, and its outcomes job by job."""
    found = asdict(measures or measure(run))
    del found["wall_seconds"]
    _check(name, found | {"outcomes_sha256": _digest(run)})


def check_forecasts(name: str, run: Run) -> None:
    """Compare the forecast starts of a run with the record, and its outcomes job by job."""
    error = forecast_error(run.outcomes)
    _check(name, {"forecast": error and asdict(error), "outcomes_sha256": _digest(run)})


def check_ranges(name: str, quality: RangeQuality) -> None:
    """Compare how good the ranges of forecast starts are."""
    _check(name, asdict(quality))


def check_fillings(name: str, fillings: Iterable[tuple[int, Filling]]) -> None:
    """Compare fillings by seed."""
    _check(name, {f"seed {seed}": asdict(filling) for seed, filling in fillings})


def _check(name: str, found: dict[str, Any]) -> None:
    text = as_json(found)
    check_stored(FOLDER / f"{name}.json", text, lambda stored: _equal(stored, text))


def _equal(stored: str, text: str) -> bool:
    if stored == text or not stored or sys.version_info[:2] == RECORDED_ON:
        return stored == text
    return _same(json.loads(stored), json.loads(text))


def _same(stored: Any, found: Any) -> bool:
    if isinstance(stored, float) and isinstance(found, float):
        return found == pytest.approx(stored, rel=ROUNDING)
    if isinstance(stored, dict) and isinstance(found, dict):
        return stored.keys() == found.keys() and all(_same(stored[k], found[k]) for k in stored)
    if isinstance(stored, list) and isinstance(found, list):
        return len(stored) == len(found) and all(map(_same, stored, found))
    return bool(stored == found)


def _digest(run: Run) -> str:
    """A digest of all outcomes, in the order in which the jobs ended."""
    digest = sha256()
    for job in run.outcomes:
        row = (
            *(job.partition, job.tenant, job.user, job.gpu_milli, job.submit_ms),
            *(job.first_start_ms, job.end_ms, job.wait_ms, job.run_ms),
            *(job.preemptions, job.lost_ms, job.promised_start_ms),
        )
        digest.update(f"{row}\n".encode())
    return digest.hexdigest()
