"""The logs of one user stay within a budget, at the cost of that user alone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.acceptance.test_hostile_jobs import LONGEST_S, HostileLab, logs_of
from tests.linux_accounts import CAN_MAKE, WHY_NOT, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
USER_MB = 4


@pytest.fixture
def lab() -> Iterator[HostileLab]:
    with some_accounts("mallory", "neigh") as people, a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment |= {
            "GPU_SCHEDULER_JOBS_LOG_JOB_MB": str(2 * USER_MB),
            "GPU_SCHEDULER_JOBS_LOG_USER_MB": str(USER_MB),
            "GPU_SCHEDULER_JOBS_LOG_FREE_MB": "0.001",
        }
        server.start("4xA100-80GB")
        yield HostileLab(server, people)
        server.stop()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*"))


@pytest.mark.slow
def test_user_over_log_budget_loses_own_logs_and_job_goes_on(lab: HostileLab) -> None:
    write = "yes | head -c {0}000000; sleep {1}"
    kept = lab.neighbour.submit(write.format(3, 0))
    ended = lab.mallory.submit(write.format(3, 0))
    lab.ended(kept)
    lab.ended(ended)
    flood = lab.mallory.submit(write.format(6, 300))
    wait_until(lambda: not size_of(logs_of(lab, ended)))
    wait_until(lambda: size_of(logs_of(lab, flood)) < USER_MB << 20)
    assert "of this log were cut: the logs of this user" in lab.mallory.call(
        "GET", f"/jobs/{flood}/logs"
    )
    assert size_of(logs_of(lab, kept)) == 3_000_000
    with lab.server.client() as client:
        cut = next(event for event in client.events(0) if event["kind"] == "log_cut")
        assert cut["job_id"] == flood
        assert client.get(flood)["state"] == "running"
        metrics = client.text("/metrics")
    lab.mallory.call("DELETE", f"/jobs/{flood}")
    lab.ended(flood)
    assert "gpu_scheduler_node_log_bytes{" in metrics
    assert "gpu_scheduler_node_leftover_directories{" in metrics
