"""The next steps that the demo prints are valid commands."""

import shlex
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_scheduler.cli.admin import demo
from gpu_scheduler.cli.admin.demo import _where
from gpu_scheduler.cli.main import COMMANDS, main
from gpu_scheduler.client.client import Client


@pytest.mark.parametrize("is_on_path", [False, True], ids=["not-on-path", "on-path"])
def test_demo_next_steps_are_valid_commands_with_path_where_needed(
    monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(here) if is_on_path else "/nowhere")
    steps = [line for line in demo._next_steps("8xA100").splitlines() if line.startswith("  ")]
    exports = [step for step in steps if "export" in step]
    assert exports == ([] if is_on_path else [f"  export PATH={here}:$PATH"])
    words = [shlex.split(step, comments=True) for step in steps if step not in exports]
    assert [parts[0] for parts in words] == ["tgpu"] * len(words)
    assert {parts[1] for parts in words} <= set(COMMANDS)
    assert ["tgpu", "up", "--daemon", "--simulate", "8xA100"] in words


def test_demo_rejects_invalid_gpus_like_up(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--gpus", "nonsense"]) == 2
    said = capfd.readouterr()
    assert "cannot read 'nonsense'" in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


class Accounts:
    """A client with usage by account."""

    def usage(self) -> dict[str, Any]:
        row = {"lost_gpu_hours": 0.0, "completed": 12, "failed": 0, "preemptions": 1}
        vision = {"tenant_id": "vision", "user": None, "gpu_hours": 0.01, **row}
        return {"usage": [vision, vision | {"user": "ann"}]}


def test_accounts_are_in_columns_also_in_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    demo._print_usage(cast(Client, Accounts()))
    _, headings, row = capsys.readouterr().out.splitlines()
    assert "\t" not in headings + row
    assert headings.split("  ")[0] == "TENANT"
    assert row.startswith("vision")
    assert row.index("36 s") + 4 == headings.index("GPU TIME") + 8
    assert row.index("12") + 2 == headings.index("COMPLETED") + 9


def test_array_tasks_are_counted_and_never_cut() -> None:
    states = {"completed": "0-5", "pending": "8-11", "running": "6,7"}
    assert _where({"array": {"states": states}}) == "4 pending, 2 running, 6 completed"
    many = {**states, "failed": "12-99", "cancelled": "100-1000"}
    shown = _where({"array": {"states": many}})
    assert len(shown) == 40
    assert shown.endswith("…")
    waits = {"array": None, "state": "pending", "reason": "x" * 50, "preemptions": 0}
    assert _where(waits) == "x" * 39 + "…"


def test_demo_shows_that_a_job_was_preempted_and_resumes() -> None:
    job = {"array": None, "state": "pending", "reason": "waiting for 4 GPUs", "preemptions": 1}
    assert demo._shown_state(job) == "preempted"
    assert _where(job) == "resumes later; waiting for 4 GPUs"
    assert demo._shown_state(job | {"preemptions": 0}) == "pending"
    assert demo._shown_state(job | {"state": "running"}) == "running"


def test_demo_shows_local_times_and_no_cpu_for_gpu_jobs() -> None:
    job = {"array": None, "preemptions": 0, "state": "pending", "gpu_count": 4, "allocation": []}
    assert "UTC" not in _where(job | {"reason": "waiting until 2020-03-01 12:00 UTC"})
    assert _where(job | {"state": "running"}) == ""
    assert _where(job | {"state": "running", "gpu_count": 0}) == "CPU"
