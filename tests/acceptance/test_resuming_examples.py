"""The example scripts resume after a real preemption without repeating work.

The libraries are fakes (`tests/fakes/ml`), the scripts are those of `examples/resume`.
"""

import json
import pickle
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "resume"
STANDINS = ROOT / "tests" / "fakes" / "ml"
STEPS = 60


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def preempted_once(
    server: RealServer, place: Path, *command: object, seen: Callable[[], bool]
) -> tuple[dict[str, Any], str]:
    """Run an example, preempt it once it has made progress, and let it finish."""
    variables = {
        "PYTHONPATH": str(STANDINS),
        "PATH": f"{STANDINS / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "WANDB_STANDIN_FILE": str(place / "wandb.jsonl"),
    }
    options = ("-G", 8, "-p", "low", "--grace", "30s", "--estimate", "2h")
    steps = ("--steps", STEPS, "--save-every", 25)
    job = server.submit(*options, "--", *command, *steps, cwd=place, **variables)
    until(seen)
    urgent = server.submit("-G", 8, "-p", "urgent", "--estimate", "1m", "--", "true")
    server.tgpu("wait", "--timeout", 60, urgent)
    server.tgpu("wait", "--timeout", 60, job)
    shown = server.json("show", job)
    assert (shown["state"], shown["preemptions"], shown["attempt"]) == ("completed", 1, 2)
    first = server.tgpu("logs", "--attempt", 1, job).stdout
    second = server.tgpu("logs", job).stdout
    stopped = int(re.findall(r"stopped at step (\d+)", first)[-1])
    assert 25 <= stopped < STEPS
    assert f"finished at step {STEPS}" in second
    return shown | {"stopped": stopped}, second


def steps_of(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)", text, re.MULTILINE)]


def weight_in(path: Path) -> float:
    sys.path.insert(0, str(STANDINS))
    try:
        state = pickle.loads(path.read_bytes())
        return float(state["model"]["weight"].value)
    finally:
        sys.path.remove(str(STANDINS))
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
            del sys.modules[name]


def log_has(server: RealServer, text: str) -> Callable[[], bool]:
    return lambda: text in server.tgpu("logs", "last").stdout


def test_plain_pytorch_resumes(server: RealServer, tmp_path: Path) -> None:
    job, second = preempted_once(
        server,
        tmp_path,
        *("python", EXAMPLES / "plain_pytorch.py"),
        seen=log_has(server, "step 25 "),
    )
    assert f"resumed at step {job['stopped']}\n" in second
    assert steps_of(second) == list(range(job["stopped"] + 1, STEPS + 1))
    assert weight_in(tmp_path / "checkpoint.pt") == STEPS


def test_all_torchrun_ranks_stop_together_and_resume(server: RealServer, tmp_path: Path) -> None:
    job, second = preempted_once(
        server,
        tmp_path,
        *("torchrun", "--standalone", "--nproc-per-node=2", EXAMPLES / "torchrun_ddp.py"),
        seen=log_has(server, "step 25 "),
    )
    for rank in (0, 1):
        # Both ranks write at once, so their lines may be interleaved.
        assert re.search(rf"rank {rank} resumed at step {job['stopped']}(?!\d)", second)
    assert weight_in(tmp_path / "checkpoint.pt") == STEPS


def test_lightning_resumes(server: RealServer, tmp_path: Path) -> None:
    job, second = preempted_once(
        server,
        tmp_path,
        *("python", EXAMPLES / "lightning_module.py"),
        seen=log_has(server, "step 25\n"),
    )
    assert "resuming from" in second
    assert steps_of(second) == list(range(job["stopped"] + 1, STEPS + 1))


def test_accelerate_resumes(server: RealServer, tmp_path: Path) -> None:
    job, second = preempted_once(
        server,
        tmp_path,
        *("python", EXAMPLES / "accelerate_loop.py"),
        seen=log_has(server, "step 25 "),
    )
    assert f"resumed at step {job['stopped']}\n" in second
    assert steps_of(second) == list(range(job["stopped"] + 1, STEPS + 1))


def test_wandb_keeps_one_run_over_all_attempts(server: RealServer, tmp_path: Path) -> None:
    record = tmp_path / "wandb.jsonl"
    preempted_once(
        server,
        tmp_path,
        *("python", EXAMPLES / "wandb_run.py"),
        seen=lambda: record.exists() and len(record.read_text().splitlines()) > 25,
    )
    told = [json.loads(line) for line in record.read_text().splitlines()]
    assert len({line["run"] for line in told}) == 1
    assert [line["step"] for line in told if "step" in line] == list(range(1, STEPS + 1))
    assert sum("preempting" in line for line in told) == 1
    assert [line["exit_code"] for line in told if "exit_code" in line] == [1, 0]


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_documented(script: Path) -> None:
    pages = (EXAMPLES / "README.md", ROOT / "docs" / "howto" / "preemption-safe-training.md")
    assert all(script.name in page.read_text() for page in pages)
