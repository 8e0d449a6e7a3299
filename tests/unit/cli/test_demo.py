"""What the demo says at its end can be typed."""

import shlex
import sys
from pathlib import Path

import pytest

from gpu_scheduler.cli import demo
from gpu_scheduler.cli.main import COMMANDS


@pytest.mark.parametrize("is_on_path", [False, True], ids=["not-on-path", "on-path"])
def test_the_next_steps_are_commands_that_exist_and_the_path_is_named_where_it_must_be(
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
