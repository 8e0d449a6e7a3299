"""The new version opens a database of the old one with everything in it.

Everything that the REST API shows is asked of the old server just before it stops, and of the new
server right after it has started.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from gpu_scheduler.model.errors import SchedulerError
from tests.postgres import shared_server
from tests.upgrade.workstation import Workstation, a_workstation

PATHS = (
    *("jobs?limit=1000", "jobs?limit=1000&archived=true", "sweeps", "tenants", "quota", "limits"),
    *("reservations?all=true", "services", "services/web", "tokens", "nodes/tokens", "nodes/keys"),
    *("usage", "usage?period=current", "report", "invoice", "audit", "events?after=0&limit=1000"),
    *("me", "nodes", "gpus", "cluster/status", "notifications"),
)
GROWING = {"amount", "cpu_hours", "gpu_hours", "gpu_memory_gb_hours", "memory_gb_hours"}
"""Sums over what runs, up to now."""
OF_NOW = {"since", "until", "last", "reason"}
"""Times of the request itself, and sentences that each version words itself."""
KEY = "the-one-and-only"


def submission(command: list[str]) -> dict[str, Any]:
    return {"command": command, "gpu_count": 1, "working_directory": "/"}


def submit_once(station: Workstation) -> str:
    """Submit a job under an idempotency key; the second time it is the same job."""
    request = Request(
        f"{http_address(station)}/api/v1/jobs",
        data=json.dumps(submission(["true"])).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": KEY},
    )
    with urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["job_id"])


def http_address(station: Workstation) -> str:
    return str(json.loads((station.state / "server.json").read_text())["http"])


def whoami(station: Workstation, token: str) -> dict[str, Any]:
    request = Request(
        f"{http_address(station)}/api/v1/me", headers={"Authorization": f"Bearer {token}"}
    )
    with urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def everything(station: Workstation) -> dict[str, Any]:
    """The answers of the server to all queries."""
    found: dict[str, Any] = {}
    with station.client() as client:
        for path in PATHS:
            found[path] = client.call("GET", f"/api/v1/{path}")
        for job in found["jobs?limit=1000"]["jobs"]:
            for part in ("", "/attempts", "/tasks") if job["array"] else ("", "/attempts"):
                path = f"jobs/{job['id']}{part}"
                found[path] = client.call("GET", f"/api/v1/{path}")
            with suppress(SchedulerError):  # jobs that have not run have no log
                found[f"log of {job['id']}"] = "".join(client.logs(job["id"]))
    return found


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where the new answer lacks or changes what was in the old one; additions are allowed."""
    name = path.rpartition(".")[2].partition("[")[0]
    if name in OF_NOW:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in new:
                yield f"{path}.{key} is missing"
            else:
                yield from differences(value, new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) <= len(new):
        if len(old) < len(new) and name != "events":
            yield f"{path} has {len(new)} entries and had {len(old)}"
        for number, (former, now) in enumerate(zip(old, new, strict=False)):
            yield from differences(former, now, f"{path}[{number}]")
    elif old != new and not (name in GROWING and new > old):
        yield f"{path} is {new!r} and was {old!r}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def station(request: pytest.FixtureRequest, old_package: Path) -> Iterator[Workstation]:
    """A workstation with one of the two databases."""
    if request.param == "sqlite":
        with a_workstation(old_package) as made:
            yield made
        return
    postgres = shared_server()
    url = postgres.make_database()
    try:
        with a_workstation(old_package, database_url=url) as made:
            yield made
    finally:
        postgres.drop_database(url)


class Filled:
    """One of everything that a database can hold, by the id of each job."""

    def __init__(self, station: Workstation) -> None:
        tgpu, submit = station.tgpu, station.submit
        tgpu("tenants", "create", "lab", "--max-gpus", 8, "--weight", 2)
        tgpu("reserve", "--gpus", 2, "--tenant", "lab", "--start", "+2h", "--duration", "1h")
        self.token = tgpu("token", "create", "-q", "-u", getpass.getuser(), "-T", "lab").strip()
        tgpu("node", "token", "create", "--json")
        self.once = submit_once(station)
        self.completed = submit("-G", 1, "--", "echo", "hello")
        self.failed = submit("-G", 1, "--", "sh", "-c", "exit 3")
        self.cancelled = submit("-H", "--", "true")
        tgpu("cancel", self.cancelled)
        self.running = submit("-G", 1, "-J", "long", "--", "sleep", "1000")
        self.held = submit("-G", 1, "-t", "1m", "-T", "lab", "-H", "--", "true")
        self.after = submit("-G", 1, "-t", "1m", "-d", f"afterok:{self.held}", "--", "true")
        tasks = "test $TGPU_ARRAY_INDEX = 0 || until [ -e go ]; do sleep 0.1; done"
        self.array = submit("-a", "0-2%1", "-c", 1, "--", "sh", "-c", tasks)
        self.gang = submit("-N", 2, "-G", 16, "--", "true")
        tgpu("service", "create", "web", "-c", 1, "--check", "true", "--", "sleep", "1000")
        for job in (self.once, self.completed, self.failed, self.cancelled):
            station.ended(job)
        station.until(lambda: station.job(self.running)["state"] == "running", "the long job")
        second = f"{self.array}_1"
        station.until(lambda: station.job(second)["state"] == "running", "the second task")
        self.wait_for_service(station)

    def wait_for_service(self, station: Workstation) -> None:
        station.until(
            lambda: station.json("service", "show", "web")["state"] == "ready", "the service"
        )


def test_everything_in_database_is_still_there(station: Workstation) -> None:
    station.up()
    filled = Filled(station)
    before = everything(station)
    station.down()
    station.installation.upgrade()
    station.up()
    checked = station.json("db", "check", "--state-dir", station.state)
    assert checked["problems"] == [], checked
    filled.wait_for_service(station)
    assert list(differences(before, everything(station))) == []

    listed = {job["id"]: job["state"] for job in station.json("list", "-A")["jobs"]}
    waiting = dict.fromkeys((filled.held, filled.after, filled.gang), "pending")
    assert listed.items() >= {filled.running: "running", filled.array: "running", **waiting}.items()
    history = {job["id"]: job["state"] for job in station.json("history")["jobs"]}
    assert history == {
        filled.once: "completed",
        filled.completed: "completed",
        filled.failed: "failed",
        filled.cancelled: "cancelled",
    }
    assert station.tgpu("logs", filled.completed) == "hello\n"

    assert submit_once(station) == filled.once
    assert whoami(station, filled.token)["user"] == getpass.getuser()
    station.tgpu("release", filled.held)
    (station.work / "go").touch()
    for job in (filled.held, filled.after, filled.array):
        assert station.ended(job)["state"] == "completed"
    station.tgpu("cancel", filled.running)
    assert station.ended(filled.gang)["state"] == "completed"
