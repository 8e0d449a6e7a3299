"""Jobs that exhaust memory, fork without end or flood their logs harm only themselves."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.linux_accounts import CAN_MAKE, WHY_NOT, LinuxAccount, processes_of, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
LOG_MB = 1
PROCESSES = 60
LONGEST_S = 60.0


class HostileLab:
    """A server with small limits, a hostile user, and a neighbour."""

    def __init__(self, server: RealServer, people: list[LinuxAccount]) -> None:
        self.server = server
        socket = f"{server.state_dir}/server.sock"
        self.mallory, self.neighbour = (person.calling(socket) for person in people)

    def ended(self, job: str) -> dict[str, Any]:
        with self.server.client() as client:
            return dict(client.wait(job, timeout=LONGEST_S))

    def limits(self) -> dict[str, str]:
        """What enforces the limits of jobs on this machine."""
        log = (Path(self.server.state_dir) / "agent" / "agent.log").read_text()
        for line in log.splitlines():
            if "capabilities" in line:
                return dict(json.loads(line).get("capabilities", {}))
        return {}

    def is_well(self) -> None:
        """The server answers and stores jobs, and the neighbour's job still runs."""
        job = self.neighbour.submit("echo all is well")
        assert self.ended(job)["state"] == "completed"
        assert self.neighbour.call("GET", f"/jobs/{job}/logs") == "all is well\n"
        assert self.neighbour.call("GET", "/health")["checks"]["store"] == "ok"


@pytest.fixture(scope="module")
def lab() -> Iterator[HostileLab]:
    with some_accounts("mallory", "neigh") as people, a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment |= {
            "GPU_SCHEDULER_JOBS_LOG_SIZE_MB": str(LOG_MB),
            "GPU_SCHEDULER_SECURITY_MAX_PROCESSES_PER_JOB": str(PROCESSES),
            "GPU_SCHEDULER_SECURITY_MAX_MEMORY_PER_JOB_GB": "0.25",
        }
        server.start("4xA100-80GB")
        yield HostileLab(server, people)
        server.stop()


def has_controller(name: str) -> bool:
    """Whether this machine has a cgroup controller."""
    v1, v2 = Path("/sys/fs/cgroup") / name, Path("/sys/fs/cgroup/cgroup.controllers")
    return v1.is_dir() or (v2.exists() and name in v2.read_text().split())


def none_left(lab: HostileLab) -> bool:
    """Whether all processes of the jobs are gone soon after their end."""
    until = time.monotonic() + LONGEST_S
    while (left := processes_of(lab.mallory.uid)) and time.monotonic() < until:
        time.sleep(0.05)
    return not left


def test_job_out_of_memory_ends_and_its_neighbour_survives(lab: HostileLab) -> None:
    if not has_controller("memory"):
        pytest.skip("this machine has no memory control group")
    beside = lab.neighbour.submit("sleep 2; echo still here")
    # One line of a gibibyte, which tail has to hold.
    job = lab.mallory.submit("head -c 1073741824 /dev/zero | tail; exit $?")
    form = lab.ended(job)
    assert (form["state"], form["memory_mb"]) == ("failed", 0)
    assert lab.ended(beside)["state"] == "completed"
    lab.is_well()


def test_submit_rejects_more_memory_than_allowed(lab: HostileLab) -> None:
    answer = lab.mallory.call("POST", "/jobs", {"command": ["x"], "memory_mb": 300})
    assert (answer["code"], "max_memory_per_job_gb" in answer["error"]) == ("forbidden", True)


def test_fork_bomb_stays_within_process_limit(lab: HostileLab) -> None:
    if not has_controller("pids"):
        pytest.skip("this machine does not count processes (no pids control group)")
    # Bounded by itself as well, in case the limit does not hold; it stays when fork fails.
    bomb = "(for i in $(seq 400); do sleep 120 & done) 2>/dev/null; exec sleep 120"
    jobs = [lab.mallory.submit(bomb) for _ in range(2)]
    most = 0
    until = time.monotonic() + 30
    while time.monotonic() < until and most < 2 * PROCESSES - 2:
        most = len(processes_of(lab.mallory.uid))
        time.sleep(0.1)
    lab.is_well()
    assert PROCESSES < len(processes_of(lab.mallory.uid)) <= 2 * PROCESSES
    for job in jobs:
        lab.mallory.call("DELETE", f"/jobs/{job}")
        assert lab.ended(job)["state"] == "cancelled"
    assert none_left(lab)


def test_detached_children_are_killed_with_job(lab: HostileLab) -> None:
    job = lab.mallory.submit("setsid sleep 300 & setsid setsid sleep 301 & sleep 0.2")
    lab.ended(job)
    assert none_left(lab)


def test_job_log_is_capped_and_keeps_its_end(lab: HostileLab) -> None:
    flood = (
        "yes 'a line that is written again and again' | head -c 200000000; sleep 2; echo; echo end"
    )
    job = lab.mallory.submit(flood)
    form = lab.ended(job)
    assert form["state"] == "completed"
    kept = sum(file.stat().st_size for file in (logs_of(lab, job)).iterdir())
    assert kept <= 3 * LOG_MB * (1 << 20)
    assert lab.server.tgpu("logs", "--tail", "1", job).stdout == "end\n"
    lab.is_well()


def test_job_output_reaches_no_log_but_its_own(lab: HostileLab) -> None:
    """The output of a job goes only to its own log."""
    marker = "only-in-the-jobs-own-log"
    job = lab.mallory.submit(f"for i in 1 2 3; do echo {marker}; echo {marker} >&2; done")
    lab.ended(job)
    found = list(Path(lab.server.state_dir).rglob("*.log"))
    others = [file for file in found if marker not in file.read_text(errors="replace")]
    assert {"server.log", "agent.log"} <= {file.name for file in others}
    assert set(found) - set(others) == set(logs_of(lab, job).iterdir())


def test_job_names_and_user_agents_cannot_forge_log_lines(lab: HostileLab) -> None:
    forged = '\n{"event": "root did it"}'
    for name in (f"x{forged}", "\x1b[2J"):
        body = {"command": ["true"], "name": name}
        assert lab.mallory.call("POST", "/jobs", body)["code"] == "invalid_request"
    lab.mallory.call("GET", "/jobs/%0a%1b%5b2J", headers={"User-Agent": "\x1b[2J root did it"})
    lab.mallory.call("DELETE", "/jobs/%0d%0aroot-did-it")
    assert "job_id" in lab.mallory.call("POST", "/jobs", {"command": ["true", forged]})
    text = (Path(lab.server.state_dir) / "server.log").read_text()
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert told, "the server's log holds no record at all"
    assert "root did it" not in text
    table = lab.server.tgpu("audit", "--user", lab.mallory.name).stdout
    assert "submit" in table
    assert all(line.isprintable() for line in table.replace("\t", " ").splitlines())


def logs_of(lab: HostileLab, job: str) -> Path:
    return Path(lab.server.state_dir) / "logs" / job
