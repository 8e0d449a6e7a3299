"""Parsers handle the kept inputs, and what a fuzzer makes of them in a fixed number of runs."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.__main__ import run
from tests.fuzz.targets import CORPUS, TARGETS

ROOT = Path(__file__).parents[2]
RUNS = 5000
MOST_BYTES = 4096


def test_every_target_handles_its_kept_inputs() -> None:
    """Those that once found a bug are among them. A process of its own: targets turn logs off."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--kept"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert ended.stdout.count(" ok ") == len(TARGETS)


def test_kept_inputs_are_small_and_belong_to_targets() -> None:
    for path in CORPUS.rglob("*"):
        if path.is_file():
            assert path.parent.name in TARGETS, path
            assert path.stat().st_size <= MOST_BYTES, path
    assert [name for name, target in TARGETS.items() if not target.corpus()] == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this Python")
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzer_finds_no_unexpected_error(name: str) -> None:
    """The same seed and number of runs each time; `make soak` searches at random, and for long."""
    code, summary = run(name, "-seed=1", f"-runs={RUNS}")
    assert code == 0, summary
