"""`tgpu config` prints, explains and checks settings."""

import json
from pathlib import Path

import pytest

from gpu_scheduler.cli.main import main
from gpu_scheduler.settings import sample


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def test_the_sample_is_a_file_that_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "sample"]) == 0
    text = capsys.readouterr().out
    assert text == sample()
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: good\n"


def test_the_sample_as_json_holds_every_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "sample", "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["api"]["http_port"] == 8080
    path = tmp_path / "c.json"
    path.write_text(text)
    assert main(["config", "check", "--json", "--config", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


def test_show_tells_values_and_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("api:\n  http_port: 81\nsecurity:\n  admins: [ada, bob]\n")
    monkeypatch.setenv("GPU_SCHEDULER_CONFIG", str(path))
    monkeypatch.setenv("GPU_SCHEDULER_POLICY_ELASTIC", "no")
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"api.http_port\t81\t{path}, line 2" in shown
    assert "policy.elastic\tfalse\tvariable GPU_SCHEDULER_POLICY_ELASTIC" in shown
    assert "api.metrics_port\t9091\tdefault" in shown
    assert main(["config", "show", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["security.admins"]["value"] == ["ada", "bob"]


def test_a_wrong_file_gives_2_and_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("api:\n  http_prot: 81\n")
    assert main(["config", "check", str(path)]) == 2
    assert f"{path}, line 2: there is no setting" in capsys.readouterr().err
    assert main(["config", "check", str(path), "--config", "/other"]) == 2


def test_what_has_no_use_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_SCHEDULER_DATABASE_PORT", "5433")
    assert main(["config", "check"]) == 0
    shown = capsys.readouterr()
    assert "no use with SQLite" in shown.err
    assert "no file; variables and defaults: good" in shown.out


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["api"]
