"""`tgpu sweep`: lists, finds by a job, retries and cancels."""

import json
from typing import Any

import pytest

from gpu_scheduler.cli.jobs import sweeps
from gpu_scheduler.cli.main import main
from gpu_scheduler.model.errors import WrongState


class Client:
    """A server with one sweep of three jobs."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.jobs = [
            {"id": f"job-{n}", "state": state, "params": {"lr": str(n)}, "sweep": "grid"}
            for n, state in enumerate(("completed", "failed", "cancelled"), 1)
        ]

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, path: str) -> Any:
        if path.endswith("/sweeps"):
            return {
                "sweeps": [
                    {
                        "name": "grid",
                        "jobs": 3,
                        "states": {"failed": 1, "completed": 2},
                        "first_job_id": "job-1",
                        "last_job_id": "job-3",
                        "submitted_at": "2026-01-01T00:00:00Z",
                    }
                ]
            }
        return {"id": "job-9", "sweep": "grid" if path.endswith("job-2") else ""}

    def page(self, **query: Any) -> Any:
        found = self.jobs if query["sweep"] == "grid" else []
        return {"jobs": found, "total": len(found)}

    def retry(self, job_id: str, *, cancelled: bool) -> Any:
        assert isinstance(cancelled, bool)
        if job_id == "job-3":
            raise WrongState("job 3 cannot be retried")
        self.did.append(f"retry {job_id}")
        return {}

    def cancel(self, job_id: str) -> Any:
        self.did.append(f"cancel {job_id}")
        return {}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(sweeps, "client_for", lambda _: made)
    return made


def test_sweeps_are_listed(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--tabs"]) == 0
    assert "grid\t3\t2 completed, 1 failed\tjob-1 to job-3" in capsys.readouterr().out
    client.call = lambda *_: {"sweeps": []}  # type: ignore[method-assign]
    assert main(["sweep"]) == 0
    assert "you have no sweeps" in capsys.readouterr().err


def test_sweep_is_found_by_one_of_its_jobs(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 3
    assert main(["sweep", "7"]) == 4
    assert main(["sweep", "other"]) == 4


def test_unique_prefix_of_sweep_name_is_enough(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "gr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"] == "grid"
    client.call = lambda *_: {"sweeps": [{"name": "train-1"}, {"name": "train-2"}]}  # type: ignore[method-assign]
    assert main(["sweep", "retry", "train"]) == 4
    assert "'train' could be train-1, train-2; name one" in capsys.readouterr().err
    assert client.did == []


def test_only_failed_jobs_are_retried_by_default(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "retry", "grid"]) == 0
    assert client.did == ["retry job-2"]
    assert "1 of 3 jobs queued again" in capsys.readouterr().out
    assert main(["sweep", "retry", "grid", "--cancelled"]) == 2
    assert "job 3 cannot be retried" in capsys.readouterr().err


def test_unfinished_jobs_are_cancelled(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "cancel", "grid"]) == 0
    assert "no job is pending or running" in capsys.readouterr().out
    client.jobs += [{"id": f"job-{n}", "state": "pending", "params": {}} for n in range(10, 60)]
    assert main(["sweep", "cancel", "grid", "--json"]) == 0
    assert sorted(client.did) == sorted(f"cancel job-{n}" for n in range(10, 60))


@pytest.mark.parametrize("words", [["a", "b"], ["retry"], ["cancel"], ["retry", "a", "b"]])
def test_command_needs_one_sweep(client: Client, words: list[str]) -> None:
    assert main(["sweep", *words]) == 2
    assert client.did == []
