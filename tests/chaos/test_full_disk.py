"""The disk of the state directory fills up for a while."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import SchedulerError
from tests.chaos.audit import ENDED
from tests.chaos.single_server import SingleServer, a_single_server
from tests.chaos.workload import Workload

pytestmark = pytest.mark.slow

SIZE_MB = 24
STATE_UNUSABLE = 8


@contextmanager
def a_server_on_a_small_disk() -> Iterator[SingleServer]:
    if os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted by root")
    with a_single_server() as scheduler:
        scheduler.state.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=700", "tgpu", scheduler.state]
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
        try:
            yield scheduler
        finally:
            subprocess.run(["umount", "--lazy", scheduler.state], check=True)


def fill(scheduler: SingleServer) -> None:
    fill_directory(scheduler.state)


def fill_directory(directory: Path) -> Path:
    """Fill the disk completely; returns the file that takes the space."""
    ballast = directory / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return ballast


def test_full_disk_rejects_submissions_while_jobs_continue_and_recovers() -> None:
    with a_server_on_a_small_disk() as scheduler:
        workload = Workload(scheduler.directory, Random(1))
        scheduler.start()
        running = scheduler.submit(workload.until_told("exit:42").body)
        scheduler.until(scheduler.witnesses, "a job that runs")
        agents = scheduler.agents()
        fill(scheduler)
        taken = submit_until_refused(scheduler, workload)
        scheduler.release_jobs()
        scheduler.until(lambda: not scheduler.witnesses(), "the end of the job, on a full disk")
        health = scheduler.get("/health")
        assert health["status"] == "degraded"
        assert "the disk is full" in health["checks"]["store"]

        (scheduler.state / "ballast").unlink()
        later = scheduler.submit(workload.plain().body)
        for job_id in (running, *taken, later):
            scheduler.until(
                lambda job_id=job_id: scheduler.get(f"/jobs/{job_id}")["state"] in ENDED,
                f"the end of {job_id}, with room again",
            )
        job = scheduler.get(f"/jobs/{running}")
        assert (job["exit_code"], job["signal"], job["attempt"]) == (42, None, 1)
        assert [path.read_text().count("begin") for path in scheduler.notes.iterdir()] == [1] * (
            len(taken) + 2
        )
        assert scheduler.get("/health")["checks"]["store"] == "ok"
        assert scheduler.agents() == agents
        assert scheduler.tracebacks() == []


def test_server_killed_on_full_disk_reports_it_at_start_and_loses_nothing() -> None:
    with a_server_on_a_small_disk() as scheduler:
        workload = Workload(scheduler.directory, Random(2))
        scheduler.start()
        running = scheduler.submit(workload.until_told("exit:42").body)
        scheduler.until(scheduler.witnesses, "a job that runs")
        fill(scheduler)
        taken = submit_until_refused(scheduler, workload)
        scheduler.kill_server()
        scheduler.release_jobs()
        answer = scheduler.refused()
        assert answer.returncode == STATE_UNUSABLE, answer.stderr
        assert "no space left" in answer.stderr
        assert "Traceback" not in answer.stderr

        (scheduler.state / "ballast").unlink()
        scheduler.start()
        scheduler.until(
            lambda: all(job["state"] in ENDED for job in scheduler.jobs()), "the end of every job"
        )
        assert scheduler.get(f"/jobs/{running}")["exit_code"] == 42
        assert {running, *taken} <= {job["id"] for job in scheduler.jobs()}


def submit_until_refused(scheduler: SingleServer, workload: Workload) -> list[str]:
    """Submissions that still fit into allocated pages succeed; then a clear rejection follows."""
    taken: list[str] = []
    with scheduler.client() as client:
        for _ in range(2_000):
            plan = workload.plain()
            try:
                handle = client.submit(capture=False, **plan.body)
            except SchedulerError as error:
                assert (error.code, "full" in str(error)) == ("unavailable", True)  # noqa: PT017
                return taken
            taken.append(handle.id)
    raise AssertionError("2,000 jobs were taken on a full disk")


def test_commands_that_end_work_succeed_on_full_disk_and_survive_a_restart() -> None:
    with a_server_on_a_small_disk() as scheduler:
        workload = Workload(scheduler.directory, Random(3))
        scheduler.start()
        running = scheduler.submit(workload.until_told("exit:42").body)
        held, cancelled = (
            scheduler.submit({**workload.plain().body, "gpu_count": 8}) for _ in range(2)
        )
        scheduler.until(scheduler.witnesses, "a job that runs")
        fill(scheduler)
        with scheduler.client() as client, pytest.raises(SchedulerError, match="full"):
            client.submit(capture=False, **workload.plain().body)
        with scheduler.client() as client:
            client.hold(held)
            client.cancel(cancelled)
            client.call("POST", f"{API}/gpus/7/pause")
            (node,) = client.call("GET", f"{API}/nodes")["nodes"]
            client.call("POST", f"{API}/nodes/{node['id']}/drain")
            client.cancel(running)
        scheduler.until(
            lambda: scheduler.get(f"/jobs/{running}")["state"] == "cancelled", "its cancellation"
        )
        assert scheduler.witnesses() == []
        assert scheduler.stop() == 0

        (scheduler.state / "ballast").unlink()
        scheduler.start()
        states = {job: scheduler.get(f"/jobs/{job}")["state"] for job in (running, cancelled)}
        assert set(states.values()) == {"cancelled"}
        assert "held" in json.dumps(scheduler.get(f"/jobs/{held}/explain"))


def test_job_that_fills_the_disk_with_its_log_can_be_cancelled() -> None:
    with a_server_on_a_small_disk() as scheduler:
        scheduler.start()
        endless = "while :; do yes; sleep 0.05; done"
        flood = scheduler.submit({"command": ["sh", "-c", endless], "gpu_count": 1})
        scheduler.until(lambda: is_full(scheduler.state), "a full disk")
        with scheduler.client() as client:
            client.cancel(flood)
        scheduler.until(
            lambda: scheduler.get(f"/jobs/{flood}")["state"] == "cancelled", "its cancellation"
        )


def is_full(directory: Path) -> bool:
    return os.statvfs(directory).f_bavail == 0
