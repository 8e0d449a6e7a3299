"""Start forecasts are kept more often than those of simple estimators."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.simulator.experiment import NO_LIMIT_MS
from gpu_scheduler.simulator.metrics import forecast_error
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.predictors import Medians, Stated, UserMeans
from gpu_scheduler.simulator.traces.swf import read_swf
from gpu_scheduler.simulator.workload import Partition
from gpu_scheduler.simulator.world import Physics, World
from tests.simulation.exact_record import check_forecasts
from tests.simulation.golden import needs_traces, trace, venus

pytestmark = [needs_traces, pytest.mark.slow]
KTH_JOBS = 6_000
"""The first three months; the whole log takes minutes and gives the same result."""


def kept_percent(
    record: str,
    partitions: list[Partition],
    policy: str,
    predictor: type[Predictor],
    promises: type[Predictor],
) -> float:
    """The share of forecasts that were kept, over jobs that waited more than a minute."""
    run = Run(policy=policy, workload="", capacity_gpu_milli=0)
    chosen = replace(preset(policy), default_limit_ms=NO_LIMIT_MS)
    for partition in partitions:
        World(partition, chosen, predictor(), Physics(), run, promises_by=promises()).run()
    check_forecasts(f"promises-{record}", run)
    error = forecast_error(run.outcomes)
    assert error is not None
    print(f"{policy}, promises by {promises.__name__}: {error.kept_percent:.1f} % of {error.jobs}")  # noqa: T201
    return error.kept_percent


def test_venus_forecasts_are_kept_more_often_than_user_means() -> None:
    parts = venus().partitions
    ours = kept_percent("venus-short-medians", parts, "short", History, Medians)
    assert ours > 1.3 * kept_percent("venus-short-user-means", parts, "short", History, UserMeans)


def test_kth_forecasts_are_kept_more_often_than_user_limits() -> None:
    (part,) = read_swf(trace("swf", "KTH-SP2-1996-2.1-cln.swf.gz")).workload.partitions
    part.jobs = list(part.jobs)[:KTH_JOBS]
    ours = kept_percent("kth-easy-medians", [part], "easy", Stated, Medians)
    assert ours > 1.3 * kept_percent("kth-easy-user-limits", [part], "easy", Stated, Stated)


@pytest.mark.parametrize("predictor", [Medians, UserMeans, Stated])
def test_every_forecast_source_handles_unseen_job(predictor: type[Predictor]) -> None:
    job = venus().partitions[0].jobs
    first = next(iter(job)).job
    assert predictor().expect(first, 0) > 0
