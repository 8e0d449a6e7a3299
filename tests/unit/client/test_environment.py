"""The environment that a job takes along."""

from pathlib import Path

import pytest

from gpu_scheduler.client.captured_environment import (
    described,
    directory,
    exported,
    non_utf8_variables,
)
from gpu_scheduler.model.errors import InvalidRequest

VARIABLES = {"PATH": "/bin", "A": "1", "CUDA_VISIBLE_DEVICES": "3", "TGPU_JOB_ID": "9", "_": "x"}


@pytest.mark.parametrize(
    ("export", "carried", "given"),
    [
        (None, {"PATH": "/bin", "A": "1"}, {}),
        ("ALL", {"PATH": "/bin", "A": "1"}, {}),
        ("NONE", {}, {}),
        ("A,B=c", {"A": "1"}, {"B": "c"}),
        ("ALL,B=c=d", {"PATH": "/bin", "A": "1"}, {"B": "c=d"}),
        ("TGPU_SERVER,TGPU_JOB_ID", {"TGPU_SERVER": "/s"}, {}),
        ("MISSING,CUDA_VISIBLE_DEVICES", {}, {}),
    ],
)
def test_variables_are_exported_as_requested(
    export: str | None, carried: dict[str, str], given: dict[str, str]
) -> None:
    extra = {"TGPU_SERVER": "/s"} if export and "SERVER" in export else {}
    assert exported(export, VARIABLES | extra) == (carried, given)


@pytest.mark.parametrize("export", ["NONE,A", "=x", "ALL=1"])
def test_invalid_export_is_rejected(export: str) -> None:
    with pytest.raises(InvalidRequest, match="--export"):
        exported(export, VARIABLES)


def test_working_directory_keeps_path_seen_by_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    monkeypatch.chdir(real)
    assert directory({"PWD": str(link)}) == str(link)
    assert directory({"PWD": "/nowhere"}) == str(real)
    real.rmdir()
    with pytest.raises(InvalidRequest, match="no longer exists"):
        directory({})


def test_python_environment_is_named() -> None:
    assert described({"VIRTUAL_ENV": "/v"}) == "virtual environment /v"
    assert described({"CONDA_PREFIX": "/c"}) == "conda environment /c"
    assert described({"UV_PROJECT_ENVIRONMENT": "/u"}) == "uv environment /u"
    assert described({}) == ""


def test_non_utf8_variables_are_not_exported() -> None:
    odd = {"LATIN": "caf\udce9", "\udcff": "x", "TGPU_ODD": "\udcff", "UTF": "café"}
    carried, _ = exported("ALL", VARIABLES | odd)
    assert carried == {"PATH": "/bin", "A": "1", "UTF": "café"}
    assert non_utf8_variables(odd) == {"LATIN", "\udcff"}
