"""What `tgpu up` refuses before anything is started."""

from pathlib import Path

import pytest

from gpu_scheduler.cli.main import main


@pytest.mark.parametrize("how", [[], ["--daemon"]])
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("banana", "cannot read 'banana'; expected COUNTxMODEL-MEMORY"),
        ("8xFOO", "the memory of a 'FOO' is not known; add it, as in 8xFOO-24GB"),
        ("0xA100", "asks for 0 GPUs"),
    ],
)
def test_gpus_that_cannot_be_declared_are_refused_at_once(
    how: list[str],
    declared: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "state"
    assert main(["up", "--state-dir", str(state), "--simulate", declared, *how]) == 2
    assert message in capsys.readouterr().err
    assert not state.exists()
