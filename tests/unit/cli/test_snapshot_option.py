"""`--snapshot` and `tgpu snapshots`, against a fake server."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.cli.main import main
from gpu_scheduler.cli.submit import snapshot_command
from tests.unit.client.fake_server import USER, FakeServer, a_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    with a_server() as running:
        code = tmp_path / "code"
        code.mkdir()
        (code / "a.py").write_text("print(1)\n")
        monkeypatch.chdir(code)
        monkeypatch.setenv("PWD", str(code))
        monkeypatch.setenv("PYTHONPATH", f"{code}:/elsewhere")
        monkeypatch.setenv("TGPU_SERVER", running.directory)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr("gpu_scheduler.cli.submit.snapshot_command.my_name", lambda: USER)
        yield running


def test_paths_into_code_are_redirected_to_snapshot(server: FakeServer, tmp_path: Path) -> None:
    assert main(["submit", "--snapshot", "--", "python", str(tmp_path / "code" / "a.py")]) == 0
    (body,) = server.bodies
    copy = body["snapshot"]["path"]
    assert body["working_directory"] == copy
    assert body["command"] == ["python", f"{copy}/a.py"]
    assert body["captured_environment"]["PYTHONPATH"] == f"{copy}:/elsewhere"
    assert body["captured_environment"]["PWD"] == copy
    assert body["snapshot"]["source"] == str(tmp_path / "code")


def test_dry_run_takes_no_snapshot(server: FakeServer, tmp_path: Path) -> None:
    assert main(["submit", "--snapshot", "--dry-run", "--", "true"]) == 0
    assert not (tmp_path / "state").exists()


def test_unused_snapshots_are_listed_and_deleted(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["submit", "-q", "--snapshot", "--", "true"]) == 0
    capsys.readouterr()
    assert main(["snapshots", "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["snapshots"]
    assert (kept["commit"], kept["written"]) == ("", 0)
    assert main(["snapshots"]) == 0
    assert kept["name"][:12] in capsys.readouterr().out

    assert main(["snapshots", "prune", "--outputs"]) == 2
    monkeypatch.setattr(snapshot_command, "in_use", lambda _: {kept["path"]})
    assert main(["snapshots", "prune", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == []
    monkeypatch.setattr(snapshot_command, "in_use", lambda _: set())
    assert main(["snapshots", "prune", "--all"]) == 0
    assert "1 of 1 snapshots deleted" in capsys.readouterr().out


def test_old_snapshot_is_deleted_at_next_submission(server: FakeServer, tmp_path: Path) -> None:
    assert main(["submit", "-q", "--snapshot", "--", "true"]) == 0
    old = Path(server.bodies[0]["snapshot"]["path"])
    long_ago = time.time() - 40 * 86_400
    os.utime(old.parent / "snapshot.json", (long_ago, long_ago))
    server.jobs.clear()
    (tmp_path / "code" / "a.py").write_text("print(2)\n")
    assert main(["submit", "-q", "--snapshot", "--", "true"]) == 0
    assert not old.exists()
    assert Path(server.bodies[1]["snapshot"]["path"]).exists()
