"""The Kubernetes scheduler in simulated clusters with injected faults, on virtual time."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from tests.kubernetes.faults.variants import VARIANTS
from tests.kubernetes.faults.world import KINDS, WorldResult, run_world

# Killed processes leave coroutines that were never finished.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SHORT = 6
WORLDS = 120
AT_ONCE = 20
MOST_WORLDS = 24


@cache
def world(seed: int) -> WorldResult:
    return run_world(seed)


def check(results: list[WorldResult]) -> None:
    told = [
        f"python -m tests.kubernetes.faults {result.seed} --trace: {result.problems[0]}"
        for result in results
        if result.problems
    ]
    assert not told, "\n".join(told)


def test_every_promise_holds_under_injected_faults() -> None:
    check([world(seed) for seed in range(SHORT)])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SHORT, WORLDS, AT_ONCE))
def test_every_promise_holds_under_injected_faults_of_many_seeds(first: int) -> None:
    check([world(seed) for seed in range(first, min(first + AT_ONCE, WORLDS))])


@pytest.mark.slow
def test_worlds_contain_every_kind_of_fault_and_bound_pods() -> None:
    counts = sum((world(seed).counts for seed in range(2 * AT_ONCE)), Counter[str]())
    assert counts["bound"] > 400
    # One of the schedulers leads by mistake all the time; that is not counted.
    for kind in {*KINDS} - {"believe"}:
        assert counts[kind] > 5, kind


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_the_audit_catches_a_broken_scheduler(name: str) -> None:
    for seed in range(MOST_WORLDS):
        with VARIANTS[name]():
            if run_world(seed).problems:
                return
    pytest.fail(f"{name} went unnoticed in {MOST_WORLDS} worlds")


def test_the_same_seed_gives_the_same_world_in_every_process() -> None:
    here = run_world(3, keeps_trace=True)
    assert here == run_world(3, keeps_trace=True)
    code = (
        "from tests.kubernetes.faults.world import run_world\n"
        "print('\\n'.join(run_world(3, keeps_trace=True).trace))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tuple(told.stdout.splitlines()) == here.trace
