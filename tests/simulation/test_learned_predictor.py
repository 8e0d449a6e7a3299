"""The model of run times wins where arguments decide them, and costs nothing where they do not."""

from heapq import heappop, heappush

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.predict.selection import ScoreTotals, SelectedPredictor
from gpu_scheduler.predict.training import train_here
from gpu_scheduler.simulator.experiment import Conditions, PredictorChoice, run_policy
from gpu_scheduler.simulator.generator import WorkShape, generate, generated_workload
from gpu_scheduler.simulator.workload import TraceJob, cluster_of

NODES = cluster_of(8, 8).nodes
WITH_ARGUMENTS = WorkShape(jobs=2_400, argument_share=1.0)
WITHOUT = WorkShape(jobs=2_400)


def totals_of(jobs: list[TraceJob]) -> ScoreTotals:
    """Every job starts when it is submitted."""
    predictor = SelectedPredictor(train_here)
    ends: list[tuple[int, int, TraceJob]] = []
    for entry in jobs:
        while ends and ends[0][0] <= entry.job.submit_ms:
            at_ms, _, ended = heappop(ends)
            predictor.end(ended.job, ended.run_ms, at_ms)
        predictor.begin(entry.job, entry.job.submit_ms)
        heappush(ends, (entry.job.submit_ms + entry.run_ms, entry.job.number, entry))
    return predictor.totals


@pytest.mark.slow
def test_model_is_better_and_used_where_arguments_decide_run_times() -> None:
    totals = totals_of(list(generate(WITH_ARGUMENTS, NODES, 1)))
    assert totals.trainings > 1
    assert totals.model < 0.95 * totals.history
    assert totals.used < 0.97 * totals.history


@pytest.mark.slow
def test_selection_does_not_lose_where_there_is_nothing_to_learn_from_arguments() -> None:
    totals = totals_of(list(generate(WITHOUT, NODES, 1)))
    assert totals.jobs > 1_000
    assert totals.used <= 1.01 * totals.history


@pytest.mark.slow
def test_simulation_with_trainings_is_same_each_time() -> None:
    workload = generated_workload(WorkShape(jobs=900, argument_share=1.0), NODES, 1)
    conditions = Conditions(predictor=PredictorChoice.LEARNED)
    first, again = (run_policy(workload, preset("skip"), conditions) for _ in range(2))
    assert first.predictions is not None
    assert first.predictions.trainings == 1
    assert first.predictions == again.predictions
    assert first.outcomes.numbers == again.outcomes.numbers


def test_generated_commands_have_arguments_only_if_asked() -> None:
    plain = [entry.job for entry in generate(WorkShape(jobs=50), NODES, 1)]
    assert not any(job.command for job in plain)
    some = [entry.job for entry in generate(WorkShape(jobs=50, argument_share=1.0), NODES, 1)]
    assert all("--epochs" in job.command for job in some if not job.interactive)
