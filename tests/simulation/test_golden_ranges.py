"""The ranges of expected starts hold on real traces, and beat the quantiles of recent waits."""

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.simulator.experiment import Conditions, run_policy
from gpu_scheduler.simulator.range_quality import RangeQuality, range_quality
from gpu_scheduler.simulator.traces.swf import read_swf
from gpu_scheduler.simulator.workload import Workload
from tests.simulation.exact_record import check_ranges
from tests.simulation.golden import needs_traces, philly, trace, venus

pytestmark = [needs_traces, pytest.mark.slow]
FIRST_JOBS = 9_000
EVERY = 4


def swf(name: str) -> Workload:
    """The first months of a log; the whole log takes minutes."""
    workload = read_swf(trace("swf", f"{name}-cln.swf.gz")).workload
    (part,) = workload.partitions
    part.jobs = list(part.jobs)[:FIRST_JOBS]
    return workload


def kth() -> Workload:
    return swf("KTH-SP2-1996-2.1")


def sdsc() -> Workload:
    """A log that was not looked at while the rules of ranges were chosen."""
    return swf("SDSC-SP2-1998-4.2")


def quality(workload: Workload, policy: str) -> RangeQuality:
    """The ranges of one waiting job in `EVERY`."""
    run = run_policy(workload, preset(policy), Conditions(forecasts=True, forecast_every=EVERY))
    found = range_quality(run.outcomes)
    assert found is not None
    print(found)  # noqa: T201 - pytest shows it with -rP
    return found


LEAST_JOBS = 200
"""A horizon with fewer jobs is not judged."""


@pytest.mark.parametrize(
    ("name", "policy"),
    [("venus", "short"), ("philly", "short"), ("kth", "easy"), ("sdsc", "easy")],
)
def test_four_in_five_starts_fall_into_their_range(name: str, policy: str) -> None:
    workload = {"venus": venus, "philly": philly, "kth": kth, "sdsc": sdsc}[name]()
    found = quality(workload, policy)
    check_ranges(f"ranges-{name}-{policy}", found)
    assert 75 < found.covered_percent < 85
    assert found.better_percent > 20
    horizons = [each for each in found.horizons if each.jobs >= LEAST_JOBS]
    assert horizons
    assert all(70 < each.covered_percent < 90 for each in horizons), horizons
