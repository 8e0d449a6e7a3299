"""The scheduler in simulated worlds with injected faults, on virtual time."""

import os
import subprocess
import sys
from functools import cache

import pytest

from tests.faults.regression_seeds import KEPT
from tests.faults.world import WorldResult, run_world

pytestmark = pytest.mark.slow

WORLDS = 200
AT_ONCE = 20
SEEDS = [*range(WORLDS), *sorted(KEPT)]


@cache
def world(seed: int) -> WorldResult:
    return run_world(seed)


@pytest.mark.parametrize("first", range(0, len(SEEDS), AT_ONCE))
def test_every_guarantee_holds_under_injected_faults(first: int) -> None:
    results = [world(seed) for seed in SEEDS[first : first + AT_ONCE]]
    failed = [result for result in results if result.problems]
    told = [f"{result.replay} --trace: {result.problems[0]}" for result in failed]
    assert not told, "\n".join(told)


def test_worlds_contain_faults_and_jobs() -> None:
    counts: dict[str, int] = {}
    for seed in range(40):
        for kind, number in world(seed).counts.items():
            counts[kind] = counts.get(kind, 0) + number
    assert counts["fault"] > 200
    assert counts["began"] > 200
    assert counts["acknowledged"] > 200
    deaths = ("server dies", "agent dies", "launcher dies", "power off")
    for kind in (*deaths, "cancelled", "prolog failed"):
        assert counts[kind] > 5, kind


@pytest.mark.parametrize("seed", [3, 29])
def test_same_seed_gives_same_world_in_every_process(seed: int) -> None:
    here = run_world(seed, keep_trace=True)
    again = run_world(seed, keep_trace=True)
    assert here.trace == again.trace
    assert here.fingerprint == again.fingerprint
    for hash_seed in ("1", "2"):
        code = f"from tests.faults.world import run_world; print(run_world({seed}).fingerprint)"
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == here.fingerprint


def test_other_seeds_give_other_worlds() -> None:
    assert len({world(seed).fingerprint for seed in range(5)}) == 5
