"""`tgpu test`: every check can fail and says what is wrong."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_scheduler.cli.admin import demo as self_check
from gpu_scheduler.cli.main import main
from gpu_scheduler.model.errors import InvalidRequest


class Job:
    def __init__(self, ended: dict[str, Any], output: str) -> None:
        self.ended, self.output, self.id = ended, output, "job-1"

    def wait(self, timeout: float) -> dict[str, Any]:
        return self.ended

    def logs(self) -> list[str]:
        return [self.output]

    def info(self) -> dict[str, Any]:
        return {"state": "running"}

    def cancel(self) -> None:
        pass


def a_client(ended: dict[str, Any], output: str, *, refuses: bool, health: str) -> Any:
    def submit(command: list[str], gpus: float = 0) -> Job:
        if refuses and gpus > 8:
            raise InvalidRequest("never")
        return Job(ended, output)

    return SimpleNamespace(submit=submit, health=lambda: {"status": health, "checks": {}})


def test_every_check_passes_on_healthy_and_fails_on_broken_system() -> None:
    bad = a_client({"state": "lost", "exit_code": None}, "", refuses=False, health="degraded")
    assert all(check(bad) for _, check in self_check.checks())
    good = {
        "the server is healthy": {},
        "a job runs on its own GPU and its output is stored": {"state": "completed"},
        "the exit code of a job is reported": {"exit_code": 7},
        "a job that can never fit is rejected at once": {},
        "a running job can be cancelled": {"state": "cancelled"},
    }
    for what, check in self_check.checks():
        client = a_client(good[what], "on GPU 1\n", refuses=True, health="healthy")
        assert check(client) == "", what


def test_failed_check_sets_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(self_check, "server_command", lambda *words: said.append(words) or 0)
    monkeypatch.setattr(self_check, "_run_checks", lambda _: 2)
    assert main(["test", "--quick"]) == 1
    assert [words[0] for words in said] == ["up", "down"]
    assert "2 checks failed" in capsys.readouterr().err
    monkeypatch.setattr(self_check, "_run_checks", lambda _: 0)
    assert main(["test", "--quick"]) == 0


def test_server_that_does_not_start_is_reported_with_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(self_check, "server_command", lambda *_: 3)
    assert main(["test", "--quick"]) == 3
