"""EASY backfilling on KTH-SP2 against known results."""

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.simulator.experiment import Conditions, PredictorChoice, run_policy
from gpu_scheduler.simulator.traces.swf import read_swf
from tests.simulation.exact_record import check_run
from tests.simulation.golden import needs_traces, shown, trace

pytestmark = [needs_traces, pytest.mark.slow]


@pytest.mark.parametrize(
    ("predictor", "slowdown"), [(PredictorChoice.STATED, 92), (PredictorChoice.ORACLE, 72)]
)
def test_easy_has_known_bounded_slowdown(predictor: PredictorChoice, slowdown: int) -> None:
    workload = read_swf(trace("swf", "KTH-SP2-1996-2.1-cln.swf.gz")).workload
    run = run_policy(workload, preset("easy"), Conditions(predictor=predictor))
    assert len(run.outcomes) == 28_476
    measures = shown(run)
    check_run(f"kth-easy-{predictor.value}", run, measures)
    assert measures.mean_bounded_slowdown == pytest.approx(slowdown, abs=2)
