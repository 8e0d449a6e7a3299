"""Guarantee: an error that one queued job causes in the engine affects no other job."""

import importlib
import pkgutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import isclass, isfunction
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

import gpu_scheduler.engine as package
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import StartOrder
from gpu_scheduler.control.messages import RunCycle, SetNode, Submit
from gpu_scheduler.control.scheduling import culprits
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.decide import Cycle, decide
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from tests.builders import a_core, a_job, a_node, a_policy
from tests.effort import examples

LIMITS = CoreLimits(sets_failing_jobs_aside=True)
POISON = "poison"


class Injected(Exception):
    """The error of a job that the engine cannot handle."""


@dataclass(slots=True)
class Fault:
    """Where the engine fails: at a call of a function while a job of this name is considered."""

    owner: Any
    name: str
    original: FunctionType

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


NOT_OF_DECIDE = (".policy", ".forecast", ".explain", ".cluster_state")


def engine_functions(left_out: tuple[str, ...] = NOT_OF_DECIDE) -> list[Fault]:
    """All functions and methods of the engine, without those of some modules."""
    found = []
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        if info.ispkg or info.name.endswith(left_out):
            continue
        for name, value in sorted(vars(module).items()):
            if getattr(value, "__module__", "") != info.name:
                continue
            if isfunction(value) and name != "decide":
                found.append(Fault(module, name, value))
            elif isclass(value) and not issubclass(value, Exception):
                found += [
                    Fault(value, method, function)
                    for method, function in sorted(vars(value).items())
                    if isfunction(function) and not method.startswith("__")
                ]
    return found


FAULTS = engine_functions()


@contextmanager
def failing(fault: Fault, poison: Container[int], countdown: int) -> Iterator[None]:
    """Let a function of the engine fail from its n-th call on while such a job is considered."""
    run, calls = Cycle.run, 0
    current: list[Cycle] = []

    def watched_run(self: Cycle, now_ms: int) -> None:
        current.append(self)
        try:
            run(self, now_ms)
        finally:
            current.clear()

    def fails(*args: Any, **named: Any) -> Any:
        nonlocal calls
        if current and current[0].considered in poison:
            calls += 1
            if calls > countdown:
                raise Injected
        return fault.original(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cycle, "run", watched_run)
        patch.setattr(fault.owner, fault.name, fails)
        yield


JOBS = st.lists(
    st.builds(
        a_job,
        id=st.just(""),
        number=st.just(0),
        gpus=st.sampled_from([0, 0.5, 1, 2, 4]),
        user=st.sampled_from(["ann", "bob"]),
        tenant=st.sampled_from(["t1", "t2"]),
        priority=st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


def a_server(policy: str) -> Core:
    core = a_core(policy=a_policy(name=policy), limits=LIMITS)
    core.apply(SetNode(a_node(gpus=8)), 0)
    return core


def starts(core: Core) -> list[str]:
    """Run cycles until nothing changes; the jobs that start."""
    started = []
    for _ in range(20):
        outcome = core.apply(RunCycle(), 0)
        started += [e.job.name for e in outcome.effects if isinstance(e, StartOrder)]
        if not core.wants_cycle:
            break
    return started


@pytest.mark.parametrize("policy", ["easy", "fair", "skip"])
@settings(max_examples=examples(200))
@given(
    jobs=JOBS,
    place=st.integers(0, 7),
    fault=st.sampled_from(FAULTS),
    countdown=st.integers(0, 3),
)
def test_error_of_one_job_anywhere_in_the_engine_affects_no_other(
    policy: str, jobs: list[Job], place: int, fault: Fault, countdown: int
) -> None:
    """The others start as if the job did not exist, and nothing is left half done."""
    core, expected = a_server(policy), a_server(policy)
    place = min(place, len(jobs))
    poisoned = a_job(id="", number=0, name=POISON, user="eve")
    for number, job in enumerate([*jobs[:place], poisoned, *jobs[place:]]):
        core.apply(Submit(job if job is poisoned else replace(job, name=str(number))), 0)
        if job is not poisoned:
            expected.apply(Submit(replace(job, name=str(number))), 0)
    with failing(fault, {place + 1}, countdown), capture_logs():
        found = starts(core)
    if POISON in found:
        assert not core.state.sweep.set_aside
    elif core.state.sweep.set_aside:
        assert list(core.state.sweep.set_aside) == [f"job-{place + 1}"]
        assert found == starts(expected)
    cluster = core.state.cluster
    fresh = ClusterState.from_snapshot(cluster.snapshot(), cluster.policy)
    kept = decide(cluster, cluster.policy, 0)
    assert decide(fresh, cluster.policy, 0).to_json() == kept.to_json()


@pytest.mark.parametrize("policy", ["easy", "fair", "skip"])
@settings(max_examples=examples(60))
@given(
    jobs=JOBS,
    poisoned=st.lists(st.integers(0, 30), max_size=40),
    fault=st.sampled_from(FAULTS),
    data=st.data(),
)
def test_any_number_of_failing_jobs_delays_other_accounts_by_a_bounded_number_of_cycles(
    policy: str, jobs: list[Job], poisoned: list[int], fault: Fault, data: st.DataObject
) -> None:
    """A cycle for `MOST_ACCOUNTS` accounts with failing jobs, each with bounded work."""
    core, expected = a_server(policy), a_server(policy)
    eves = [a_job(id="", number=0, name=POISON, user=f"eve{one}") for one in poisoned]
    order = data.draw(st.permutations([*jobs, *eves]))
    numbers = {number for number, job in enumerate(order, start=1) if job.name == POISON}
    for number, job in enumerate(order, start=1):
        core.apply(Submit(job if job.name == POISON else replace(job, name=str(number))), 0)
        if job.name != POISON:
            expected.apply(Submit(replace(job, name=str(number))), 0)
    runs = 0

    def counted(*args: Any) -> Any:
        nonlocal runs
        runs += 1
        return decide(*args)

    found: list[str] = []
    with failing(fault, numbers, 0), capture_logs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(culprits, "decide", counted)
        for _ in range(1 + len(set(poisoned)) // culprits.MOST_ACCOUNTS):
            runs = 0
            outcome = core.apply(RunCycle(), 0)
            found += [e.job.name for e in outcome.effects if isinstance(e, StartOrder)]
            assert runs <= culprits.MOST_TRIES
    aside = set(core.state.sweep.set_aside)
    assert aside <= {f"job-{number}" for number in numbers}
    if aside and POISON not in found:
        assert found == starts(expected)


@pytest.mark.parametrize("policy", ["easy", "fair", "skip"])
@settings(max_examples=examples(40))
@given(jobs=JOBS, poisoned=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
def test_failing_jobs_that_the_engine_does_not_name_delay_others_by_a_cycle_per_account(
    policy: str, jobs: list[Job], poisoned: list[int], data: st.DataObject
) -> None:
    """However many such jobs each of several accounts has, and whoever came first."""
    core, expected = a_server(policy), a_server(policy)
    eves = [a_job(id="", number=0, name=POISON, user=f"eve{one}") for one in poisoned]
    order = data.draw(st.permutations([*jobs, *eves]))
    numbers = {number for number, job in enumerate(order, start=1) if job.name == POISON}
    for number, job in enumerate(order, start=1):
        core.apply(Submit(job if job.name == POISON else replace(job, name=str(number))), 0)
        if job.name != POISON:
            expected.apply(Submit(replace(job, name=str(number))), 0)
    run, runs = Cycle.run, 0

    def fails(self: Cycle, now_ms: int) -> None:
        nonlocal runs
        runs += 1
        if numbers.intersection(self.state.queue.entries):
            raise Injected
        run(self, now_ms)

    found: list[str] = []
    others = starts(expected)
    with capture_logs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cycle, "run", fails)
        for _ in range(len(set(poisoned))):
            runs = 0
            outcome = core.apply(RunCycle(), 0)
            found += [e.job.name for e in outcome.effects if isinstance(e, StartOrder)]
            assert runs <= 1 + culprits.MOST_TRIES
        assert found == others
        while core.wants_cycle:
            core.apply(RunCycle(), 0)
    assert set(core.state.sweep.set_aside) == {f"job-{number}" for number in numbers}


def test_faults_are_injected_all_over_the_engine() -> None:
    """The list is not empty by mistake."""
    names = {str(fault) for fault in FAULTS}
    assert len(names) > 150
    assert {"Placer.place", "Calendar.reserve", "_Pass._start", "Transaction.take"} <= names
