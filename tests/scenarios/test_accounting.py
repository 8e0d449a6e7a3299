"""Every job is accounted for: the ledger charges what was really held."""

import random
from dataclasses import replace

import pytest

from gpu_scheduler.control.messages import Cancel
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.presets import PRESETS
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.predictors import Oracle
from gpu_scheduler.simulator.workload import Partition, TraceJob
from gpu_scheduler.simulator.world import Physics, World
from tests.builders import HOUR, MINUTE, a_cluster, a_job, a_node, a_policy, an_array
from tests.scenarios.lab import Lab

SIZES = (0, 0.25, 0.5, 1, 1, 1.5, 2, 4, 8, 12)


def a_day_of_work(count: int, seed: int) -> list[TraceJob]:
    chance = random.Random(seed)
    traces = []
    at_ms = 0
    for number in range(1, count + 1):
        at_ms += chance.randrange(10 * MINUTE)
        job = a_job(
            number=number,
            gpus=chance.choice(SIZES),
            cpus=chance.randrange(1, 9),
            tenant=chance.choice(["vision", "speech"]),
            user=chance.choice(["ada", "bob"]),
            priority=chance.choice([250, 750, 2500]),
            submit_ms=at_ms,
        )
        traces.append(TraceJob(job, chance.randrange(MINUTE, 5 * HOUR)))
    return traces


def simulated(policy: Policy, traces: list[TraceJob]) -> tuple[World, Run]:
    nodes = a_cluster(nodes=3)
    run = Run(policy=policy.name, workload="test", capacity_gpu_milli=24_000)
    partition = Partition(name="main", nodes=nodes, jobs=traces)
    world = World(partition, policy, Oracle(), Physics(), run)
    world.run()
    return world, run


@pytest.mark.parametrize("name", list(PRESETS))
def test_ledger_sums_equal_simulated_gpu_time(name: str) -> None:
    traces = a_day_of_work(60, seed=7)
    world, run = simulated(a_policy(name=name), traces)
    assert len(run.outcomes) == len(traces)
    used: dict[str, int] = {}
    for outcome in run.outcomes:
        spent = outcome.gpu_milli * (outcome.run_ms + outcome.lost_ms)
        used[outcome.tenant] = used.get(outcome.tenant, 0) + spent
    accounts = world.core.state.usage_totals
    assert {tenant: accounts.total(tenant).gpu_milli_ms for tenant in used} == used
    for tenant, spent in used.items():
        users = [accounts.total((tenant, user)) for user in ("ada", "bob")]
        assert sum(user.gpu_milli_ms for user in users) == spent


@pytest.mark.parametrize("name", ["fifo", "easy", "fair", "feedback"])
def test_nothing_is_held_queued_or_remembered_after_all_jobs_end(name: str) -> None:
    world, _ = simulated(a_policy(name=name), a_day_of_work(80, seed=11))
    state = world.core.state
    assert (state.jobs, state.by_allocation, state.queued_tasks) == ({}, {}, 0)
    assert state.cluster.running == {}
    assert state.cluster.index.free_devices == 24
    held = state.cluster.holdings.of("vision")
    assert (held.gpu_milli, held.cpu_milli, held.jobs) == (0, 0, 0)
    assert state.decayed_usage.held("vision") == 0


def test_simulation_is_reproducible() -> None:
    traces = a_day_of_work(60, seed=3)
    runs = [simulated(a_policy(name="fair"), traces)[1] for _ in range(2)]
    assert list(runs[0].outcomes) == list(runs[1].outcomes)


def test_every_attempt_is_charged_including_failed_ones() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, gpus=2, retries=1))
    lab.at(HOUR)
    lab.ends("j1", exit_code=1)
    lab.at(2 * HOUR)
    start_ms = lab.allocation("j1").start_ms
    lab.ends("j1")
    totals = lab.core.state.usage_totals.total(("vision", "ada"))
    assert totals.gpu_milli_ms == 2000 * (HOUR + 2 * HOUR - start_ms)
    assert (totals.completed, totals.failed) == (1, 0)


def test_end_reported_after_outage_is_not_charged_for_outage() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, gpus=2), an_array(number=2, tasks="0-1", gpus=1))
    lab.at(60 * HOUR)
    lab.ends("j1", "j2_0", at_ms=HOUR, run_ms=HOUR - MINUTE)
    lab.ends("j2_1")
    accounts = lab.core.state.usage_totals
    assert accounts.total("vision").gpu_milli_ms == 3000 * HOUR + 1000 * 60 * HOUR
    assert lab.row("j1").end_ms == HOUR
    assert [task.end_ms for task in lab.store.tasks("j2")] == [HOUR, 60 * HOUR]
    assert [one.end_ms for one in lab.store.attempts("j1")] == [HOUR]


@pytest.mark.parametrize(
    ("at_ms", "run_ms", "ended_ms"),
    [
        (5 * HOUR, 0, HOUR),
        (-HOUR, 0, 0),
        (-HOUR, MINUTE, MINUTE),
        (MINUTE, 2 * MINUTE, 2 * MINUTE),
        (None, MINUTE, HOUR),
    ],
)
def test_end_time_is_clamped_to_run_and_now_after_clock_jump(
    at_ms: int | None, run_ms: int, ended_ms: int
) -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.at(HOUR)
    lab.ends("j1", at_ms=at_ms, run_ms=run_ms)
    assert lab.row("j1").end_ms == ended_ms


def test_job_that_never_ran_is_counted_and_costs_nothing() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), an_array(number=2, tasks="0-9"))
    lab.do(Cancel("j2"))
    totals = lab.core.state.usage_totals.total("vision")
    assert (totals.cancelled, totals.gpu_milli_ms) == (10, 0)


def test_gpu_shares_are_charged_as_shares() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, gpus=0.25), replace(a_job(number=2, gpus=1.5), user="bob"))
    lab.at(HOUR)
    lab.ends("j1", "j2")
    accounts = lab.core.state.usage_totals
    assert accounts.total(("vision", "ada")).gpu_milli_ms == 250 * HOUR
    assert accounts.total(("vision", "bob")).gpu_milli_ms == 1500 * HOUR
