"""Helios Venus, September 2020, against published tables and published policies."""

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.priority import largest_gap_ms, longest_wait_ms
from gpu_scheduler.simulator.experiment import run_policy
from gpu_scheduler.simulator.outcomes import Run
from tests.simulation.exact_record import check_run
from tests.simulation.golden import (
    by_partition_seconds,
    needs_traces,
    published_seconds,
    shown,
    venus,
)

pytestmark = [needs_traces, pytest.mark.slow]
TIRESIAS_JCT_S = 14_700
TIRESIAS_P999_S = 195_846
QSSF_JCT_S = 15_548
MOST_JCT_S, MOST_P999_S = 13_000, 150_000
"""What `feedback` may take at the most."""


@pytest.mark.parametrize("policy", ["fifo", "sjf"])
def test_blocking_policies_equal_published_means_on_every_cluster(policy: str) -> None:
    run = run_policy(venus(), preset(policy))
    check_run(f"venus-{policy}", run)
    for kind in ("jct", "queue"):
        measured = by_partition_seconds(run, kind)
        published = published_seconds(kind, policy)
        assert measured.keys() == published.keys()
        for name, seconds in published.items():
            assert abs(measured[name] - seconds) <= 1, (kind, name, measured[name], seconds)


def test_non_preemptive_preset_beats_ordering_by_recent_runs() -> None:
    run = run_policy(venus(), preset("short"))
    measures = shown(run)
    check_run("venus-short", run, measures)
    assert measures.jct.mean_s < 15_300
    assert not any(run.outcomes.numbers["preemptions"])
    assert_waits_within_bound(
        run, largest_gap_ms(preset("short").order, 0) + preset("short").reserve_after_ms
    )


def test_preemptive_preset_beats_tiresias_in_mean_and_tail() -> None:
    run = run_policy(venus(), preset("feedback"))
    measures = shown(run)
    check_run("venus-feedback", run, measures)
    assert measures.jct.mean_s < MOST_JCT_S < TIRESIAS_JCT_S
    assert measures.wait.p999_s < MOST_P999_S < TIRESIAS_P999_S
    feedback = preset("feedback").feedback
    assert_waits_within_bound(run, feedback.longest_unprotected_ms + feedback.quantum_ms)


def test_fair_policy_beats_published_prediction() -> None:
    run = run_policy(venus(), preset("fair"))
    measures = shown(run)
    check_run("venus-fair", run, measures)
    assert measures.jct.mean_s < QSSF_JCT_S


def assert_waits_within_bound(run: Run, gap_ms: int) -> None:
    """Jobs ahead are at most those of the same cluster that wait or arrive within the gap."""
    by_partition: dict[str, list[tuple[int, int, int, int]]] = {}
    for outcome in run.outcomes:
        row = (outcome.submit_ms, outcome.end_ms, outcome.wait_ms, outcome.run_ms + outcome.lost_ms)
        by_partition.setdefault(outcome.partition, []).append(row)
    for rows in by_partition.values():
        longest_ms = max(row[3] for row in rows)
        for submit_ms, _, wait_ms, _ in rows:
            ahead = sum(1 for row in rows if row[0] <= submit_ms + gap_ms and row[1] > submit_ms)
            bound = longest_wait_ms(gap_ms=gap_ms, jobs_ahead=ahead, longest_run_ms=longest_ms)
            assert wait_ms <= bound
