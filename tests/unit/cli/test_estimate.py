"""`tgpu estimate` shows its result and method."""

import json
from pathlib import Path

import pytest

from gpu_scheduler.cli.main import main


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server answers, and none is needed."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TGPU_SERVER", str(tmp_path / "none"))


def test_estimate_shows_components_and_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "qwen2.5-32b", "--context", "32k", "--dtype", "bf16"]) == 0
    shown = capsys.readouterr().out
    assert "weights      61.03  32.8 B parameters x 2 bytes (bf16)" in shown
    assert "fits on: 1 x A100-80GB / H100-80GB" in shown
    assert "         2 x A100-40GB" in shown


def test_json_output_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "llama-3.1-8b", "--train", "lora", "--batch", "2", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == 8_030_261_248
    assert document["train"] == "lora"
    total = sum(part["memory_mb"] for part in document["parts"]) + document["per_gpu_memory_mb"]
    assert total == pytest.approx(document["total_memory_mb"], abs=5)
    assert {"gpus": 1, "gpu": "A100-80GB"}.items() <= next(
        fit for fit in document["fits_on"] if fit["gpu"] == "A100-80GB"
    ).items()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["foo"], "the size of 'foo' cannot be read"),
        (["x-7b", "--context", "long"], "--context is 'long'"),
        (["x", "--params", "many"], "--params is 'many'"),
        (["./nowhere"], "cannot be read"),
    ],
)
def test_invalid_arguments_are_rejected(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["estimate", *words]) == 2
    assert told in capsys.readouterr().err


def test_parameter_count_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "ours", "--params", "13b", "--all"]) == 0
    assert "parameters  13 B: as given" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["0b", "ours-0b", "0.0b", "0m", "0x7b", "8x0b", "ours-99999999b", f"{'9' * 400}b"],
    ids=lambda name: name[:12],
)
def test_name_with_impossible_size_is_rejected(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["estimate", name]) == 2
    assert "is not plausible; write a size such as 7b" in capsys.readouterr().err


def test_name_without_size_is_rejected_with_valid_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["estimate", "mystery"]) == 2
    assert "write it as in mystery-7b" in (told := capsys.readouterr().err)
    assert told.endswith("; or give --params 7b\n")


@pytest.mark.parametrize("size", ["infb", "1e400b", "nanb", "0b", "-7b", "100000b"])
def test_impossible_parameter_count_is_rejected(
    capsys: pytest.CaptureFixture[str], size: str
) -> None:
    assert main(["estimate", "ours", f"--params={size}"]) == 2
    assert f"--params is '{size}'" in capsys.readouterr().err
