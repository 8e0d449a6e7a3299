"""Fork bombs and hungry jobs of several users leave the machine usable."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.acceptance.test_hostile_jobs import LONGEST_S, HostileLab, has_controller, none_left
from tests.linux_accounts import CAN_MAKE, WHY_NOT, processes_of, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
CAP_SYS_RESOURCE = 24
CAPABILITIES = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
CAN_PROTECT = bool(int(CAPABILITIES, 16) >> CAP_SYS_RESOURCE & 1)
OF_JOB, OF_USER, OF_ALL = 50, 60, 90
# Bounded by itself as well, in case the limits do not hold; it stays when fork fails.
BOMB = "(for i in $(seq 200); do sleep 120 & done) 2>/dev/null; exec sleep 120"


@pytest.fixture(scope="module")
def lab() -> Iterator[HostileLab]:
    with some_accounts("mallory", "neigh") as people, a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment |= {
            "GPU_SCHEDULER_SECURITY_MAX_PROCESSES_PER_JOB": str(OF_JOB),
            "GPU_SCHEDULER_SECURITY_MAX_PROCESSES_PER_USER": str(OF_USER),
            "GPU_SCHEDULER_SECURITY_MAX_PROCESSES_TOTAL": str(OF_ALL),
            "GPU_SCHEDULER_SECURITY_DEFAULT_MEMORY_PERCENT": "1",
            "GPU_SCHEDULER_SECURITY_DEFAULT_MEMORY_FLOOR_GB": "0.1",
        }
        server.start("4xA100-80GB")
        yield HostileLab(server, people)
        server.stop()


def settled(count: Callable[[], int], above: int) -> int:
    """The number when it is larger than `above` and has not grown for two seconds."""
    until, most, since = time.monotonic() + LONGEST_S, 0, time.monotonic()
    while time.monotonic() < until and (most <= above or time.monotonic() < since + 2):
        if count() > most:
            most, since = count(), time.monotonic()
        time.sleep(0.1)
    return most


def test_fork_bombs_stay_within_limits_of_user_and_of_all_jobs(lab: HostileLab) -> None:
    bombs = [lab.mallory.submit(BOMB) for _ in range(2)]
    most = settled(lambda: len(processes_of(lab.mallory.uid)), above=OF_JOB)
    # RLIMIT_NPROC is compared before the fork: one process more than the limit may run.
    assert OF_JOB < most <= OF_USER + 1
    lab.is_well()
    if has_controller("pids"):
        more = lab.neighbour.submit(BOMB)
        together = settled(
            lambda: len(processes_of(lab.mallory.uid)) + len(processes_of(lab.neighbour.uid)),
            above=OF_USER + 1,
        )
        assert OF_USER + 1 < together <= OF_ALL
        lab.neighbour.call("DELETE", f"/jobs/{more}")
        assert lab.ended(more)["state"] == "cancelled"
    for job in bombs:
        lab.mallory.call("DELETE", f"/jobs/{job}")
        # A bomb whose shell can start nothing at all, because of the other one, fails by itself.
        assert lab.ended(job)["state"] in {"cancelled", "failed"}
    assert none_left(lab)
    lab.is_well()


def test_job_without_memory_request_is_limited_to_its_share(lab: HostileLab) -> None:
    if not has_controller("memory"):
        pytest.skip("this machine has no memory control group")
    beside = lab.neighbour.submit("sleep 2; echo still here")
    # One line of a gibibyte, which tail has to hold.
    form = lab.ended(lab.mallory.submit("head -c 1073741824 /dev/zero | tail; exit $?"))
    assert form["state"] == "failed"
    assert "it requested no memory" in form["reason"]
    assert lab.ended(beside)["state"] == "completed"
    lab.is_well()


def test_kernel_kills_jobs_before_scheduler(lab: HostileLab) -> None:
    if not CAN_PROTECT:
        pytest.skip("this machine lets root not lower oom_score_adj (no CAP_SYS_RESOURCE)")
    job = lab.mallory.submit("cat /proc/self/oom_score_adj")
    assert lab.ended(job)["state"] == "completed"
    assert int(lab.mallory.call("GET", f"/jobs/{job}/logs")) == 0
    state_dir = lab.server.state_dir.encode()
    scores = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parts = {b"gpu_scheduler.agent", b"gpu_scheduler.agent.launcher"} & set(command)
                if parts and any(state_dir in word for word in command):
                    part = parts.pop().decode().rpartition(".")[2]
                    score = int((entry / "oom_score_adj").read_text())
                    scores[part] = min(score, scores.get(part, 0))
            except OSError:
                continue
    assert scores == {"agent": -900, "launcher": -900}
