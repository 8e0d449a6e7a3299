"""Generated workloads: load, mix, daily rhythm, user habits, reproducibility."""

import hashlib
import math
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.simulator.generator import (
    DAY_S,
    HOUR_S,
    ROUND_LIMITS_S,
    WorkShape,
    generate,
    generated_workload,
    rhythm,
)
from gpu_scheduler.simulator.workload import EmptyCluster, TraceJob
from tests.simulation.trace_files import a_cluster

CLUSTER = a_cluster(nodes=16)


@cache
def some_work(jobs: int = 5_000, seed: int = 1, **shape: Any) -> list[TraceJob]:
    return list(generate(WorkShape(jobs=jobs, **shape), CLUSTER.nodes, seed))


def share(jobs: Iterable[TraceJob], wanted: Any) -> float:
    answers = [bool(wanted(entry)) for entry in jobs]
    return sum(answers) / len(answers)


def test_requested_number_of_jobs_is_generated_in_submission_order() -> None:
    jobs = some_work(3_000)
    assert len(jobs) == 3_000
    assert [entry.job.number for entry in jobs] == list(range(1, 3_001))
    assert all(a.job.submit_ms <= b.job.submit_ms for a, b in pairwise(jobs))
    assert len({entry.job.id for entry in jobs}) == 3_000


@pytest.mark.parametrize("load", [0.5, 1.2])
def test_offered_load_is_as_requested(load: float) -> None:
    # Narrow run times, so that chance does not hide the effect.
    jobs = some_work(20_000, load=load, kind_spread=0.5, run_spread=(0.2, 0.5), longest_run_s=DAY_S)
    offered = sum(entry.job.gpu_milli / 1000 * entry.run_ms for entry in jobs)
    assert offered / (CLUSTER.gpu_count * jobs[-1].job.submit_ms) == pytest.approx(load, rel=0.1)


def test_default_shape_has_requested_load() -> None:
    jobs = some_work(40_000)
    offered = sum(entry.job.gpu_milli / 1000 * entry.run_ms for entry in jobs)
    assert offered / (CLUSTER.gpu_count * jobs[-1].job.submit_ms) == pytest.approx(0.9, rel=0.25)


def test_sizes_follow_requested_mix() -> None:
    jobs = some_work(20_000, sweep_share=0)
    whole = 1 - 0.12 - 0.06
    assert share(jobs, lambda e: 0 < e.job.gpu_milli < 1000) == pytest.approx(0.12, abs=0.02)
    assert share(jobs, lambda e: e.job.gpu_milli == 0) == pytest.approx(0.06, abs=0.01)
    assert share(jobs, lambda e: e.job.gpu_milli == 1000) == pytest.approx(whole * 0.62, abs=0.03)
    assert share(jobs, lambda e: e.job.gpu_milli >= 16_000) == pytest.approx(whole * 0.05, abs=0.01)


def test_sweeps_do_not_change_mix() -> None:
    jobs = some_work(20_000)
    assert share(jobs, lambda e: e.job.gpu_milli == 8000) == pytest.approx(0.82 * 0.12, abs=0.03)


def test_run_times_have_heavy_tail() -> None:
    runs = sorted(entry.run_ms for entry in some_work(20_000))
    assert runs[0] >= 1000
    assert runs[-1] <= 7 * DAY_S * 1000
    assert statistics.mean(runs) > 3 * statistics.median(runs)


def test_history_of_user_and_name_predicts_run_time() -> None:
    jobs = [entry for entry in some_work(20_000, fail_share=0) if entry.run_ms > 1000]
    by_kind: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in jobs:
        by_kind[entry.job.user, entry.job.name].append(math.log(entry.run_ms))
    overall = statistics.pvariance([value for values in by_kind.values() for value in values])
    frequent = [values for values in by_kind.values() if len(values) > 4]
    within = sum(statistics.pvariance(values) * len(values) for values in frequent)
    within /= sum(map(len, frequent))
    # Most of the variance lies between kinds, but far from all of it.
    assert 0.05 * overall < within < 0.5 * overall


def test_few_users_submit_most_jobs() -> None:
    counts = Counter(entry.job.user for entry in some_work(20_000))
    top = sum(count for _, count in counts.most_common(6))
    assert 0.3 < top / 20_000 < 0.9
    assert len(counts) > 40


def test_user_belongs_to_one_tenant() -> None:
    owners = {(entry.job.tenant, entry.job.user) for entry in some_work(10_000, tenants=4)}
    assert len({tenant for tenant, _ in owners}) == 4
    assert len(owners) == len({user for _, user in owners})


def test_limits_are_round_and_mostly_too_long() -> None:
    limited = [entry for entry in some_work(20_000) if entry.job.max_runtime_ms]
    assert {entry.job.max_runtime_ms // 1000 for entry in limited} <= set(ROUND_LIMITS_S)
    assert all(entry.run_ms <= entry.job.max_runtime_ms for entry in limited)
    assert share(limited, lambda e: e.run_ms < 0.5 * e.job.max_runtime_ms) > 0.6
    assert 0.7 < len(limited) / 20_000 < 1


def test_some_jobs_fail_early() -> None:
    shape = {"kind_spread": 0, "run_spread": (0.1, 0.1), "median_run_s": 2 * HOUR_S}
    jobs = some_work(10_000, fail_share=0.2, **shape)
    assert share(jobs, lambda e: e.run_ms <= 300_000) == pytest.approx(0.2, abs=0.02)


def test_priorities_follow_requested_mix() -> None:
    jobs = some_work(20_000, sweep_share=0)
    assert share(jobs, lambda e: e.job.priority == 750) == pytest.approx(0.76, abs=0.02)
    assert {entry.job.priority for entry in jobs} == {250, 750, 1500, 2500}


def test_interactive_sessions_are_small_and_not_preempted() -> None:
    sessions = [entry.job for entry in some_work(20_000) if entry.job.interactive]
    assert sessions
    assert all(job.gpu_milli <= 1000 and not job.preemptible for job in sessions)


def test_sweeps_are_bursts_of_one_user() -> None:
    def equal_neighbours(jobs: list[TraceJob]) -> float:
        pairs = [(a.job, b.job) for a, b in pairwise(jobs)]
        return sum(a.name == b.name for a, b in pairs) / len(pairs)

    assert equal_neighbours(some_work(sweep_share=0.5)) > 0.2
    assert equal_neighbours(some_work(sweep_share=0)) < 0.1


def test_days_and_weeks_have_rhythm() -> None:
    shape = WorkShape()
    monday, saturday = 0, 5 * DAY_S
    peak, night = rhythm(shape, monday + 15 * HOUR_S), rhythm(shape, monday + 3 * HOUR_S)
    assert peak > 4 * night
    assert rhythm(shape, saturday + 15 * HOUR_S) == pytest.approx(peak / 2)
    hours = [rhythm(shape, hour * HOUR_S) for hour in range(7 * 24)]
    assert statistics.mean(hours) == pytest.approx(1)


def test_arrivals_follow_rhythm() -> None:
    jobs = some_work(20_000, sweep_share=0)
    hours = Counter(entry.job.submit_ms // 3_600_000 % 24 for entry in jobs)
    assert hours[15] > 3 * hours[3]


@pytest.mark.parametrize("weekend_factor", [0, 3])
def test_rhythm_may_stop_or_reverse_at_weekend(weekend_factor: float) -> None:
    jobs = some_work(20_000, weekend_factor=weekend_factor, sweep_share=0)
    days = Counter(entry.job.submit_ms // 86_400_000 % 7 for entry in jobs)
    assert (days[5] > days[1]) == (weekend_factor == 3)
    assert weekend_factor or not days[5]


@pytest.mark.parametrize(
    "cluster",
    [
        a_cluster(nodes=1, gpus_per_node=1),
        a_cluster(nodes=3, gpus_per_node=4),
        a_cluster(nodes=2, gpus_per_node=8, cpu_milli=0, memory_mb=0, gpu_memory_mb=0),
        a_cluster(nodes=2, gpus_per_node=8, cpu_milli=9_000, memory_mb=1_000),
    ],
)
def test_every_job_fits_cluster(cluster: Any) -> None:
    empty = EmptyCluster(cluster.nodes)
    for entry in generate(WorkShape(jobs=500), cluster.nodes, 3):
        empty.check(entry.job.members)


def test_cluster_without_gpus_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="fits a cluster of 0 GPUs"):
        generate(WorkShape(), a_cluster(gpus_per_node=0).nodes, 1)
    with pytest.raises(InvalidRequest):
        generated_workload(WorkShape(), a_cluster(gpus_per_node=0).nodes, 1)


@pytest.mark.parametrize(
    "shape",
    [
        {"jobs": 0},
        {"load": 0},
        {"load": -1},
        {"load": float("nan")},
        {"load": float("inf")},
        {"users": 0},
        {"fraction_share": 1.5},
        {"fraction_share": 0.6, "cpu_only_share": 0.5},
        {"gpu_mix": ()},
        {"gpu_mix": ((0, 1.0),)},
        {"gpu_mix": ((1, -1.0),)},
        {"gpu_mix": ((1, 0.0),)},
        {"run_spread": (2.0, 1.0)},
        {"day_swing": 1.1},
        {"priorities": ()},
        {"priorities": (("huge", 1.0),)},
    ],
)
def test_impossible_shape_is_rejected(shape: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        WorkShape(**shape)


def test_workload_can_be_iterated_again() -> None:
    workload = generated_workload(WorkShape(jobs=200, tenants=3), CLUSTER.nodes, 9)
    (pool,) = workload.partitions
    assert list(pool.jobs) == list(pool.jobs)
    assert pool.total_jobs == 200
    assert {entry.job.tenant for entry in pool.jobs} <= {tenant.id for tenant in pool.tenants}


def test_another_seed_gives_other_jobs() -> None:
    assert some_work(50, seed=1) != some_work(50, seed=2)


def test_million_jobs_are_streamed() -> None:
    stream = generate(WorkShape(jobs=1_000_000), CLUSTER.nodes, 5)
    tracemalloc.start()
    try:
        for _ in islice(stream, 20_000):
            pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000


def test_stream_is_same_under_any_hash_seed() -> None:
    script = (
        "import hashlib\n"
        "from gpu_scheduler.simulator.workload import cluster_of\n"
        "from gpu_scheduler.simulator.generator import generate\n"
        "from gpu_scheduler.simulator.generator import WorkShape\n"
        "jobs = list(generate(WorkShape(jobs=500), cluster_of(16, 8).nodes, 1))\n"
        "print(hashlib.sha256(repr(jobs).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("0", "4711")
    }
    assert digests == {hashlib.sha256(repr(some_work(500)).encode()).hexdigest()}
