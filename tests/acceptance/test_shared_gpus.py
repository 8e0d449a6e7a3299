"""GPU sharing on fake NVIDIA hardware whose readings change while the whole program runs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.fakes.nvml import FakeNvml, fake_nvml, fake_nvml_library
from tests.notification_receivers import HttpReceiver, until

__all__ = ["fake_nvml", "fake_nvml_library"]

PATIENCE_S = 60
SETTINGS = {
    "GPU_MONITOR_INTERVAL_S": "0.1",
    "GPU_UTILIZATION_WINDOW_S": "1",
    "GPU_MEMORY_GRACE_S": "0.5",
    "GPU_RELEASE_TIMEOUT_S": "0.5",
    "GPU_IDLE_ACTION": "stop",
    "GPU_IDLE_MINUTES": "0.02",
    "GPU_IDLE_GRACE_MINUTES": "0.01",
}


class Box:
    """A server on three fake A100, of which the last is split into two slices."""

    def __init__(self, server: RealServer, nvml: FakeNvml, mailbox: HttpReceiver) -> None:
        self.server = server
        self.nvml = nvml
        self.mailbox = mailbox

    def gpu(self, index: int = 0) -> dict[str, Any]:
        with self.server.client() as client:
            return client.gpus()[index]

    def pid_of(self, job: str) -> int:
        """The first number in the output of a job."""
        self.until(lambda: self.server.tgpu("logs", job).stdout.strip() != "")
        return int(self.server.tgpu("logs", job).stdout.split()[0])

    def busy_job(self, *words: str) -> tuple[str, int]:
        """A job that runs until it is stopped, and its process."""
        job = self.server.submit(*words, "--", "sh", "-c", "echo $$; exec sleep 300")
        return job, self.pid_of(job)

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.server.client() as client:
            page = client.call("GET", "/api/v1/events?limit=1000")
        return [event for event in page["events"] if event["kind"] == kind]

    def last_event(self, kind: str, **says: object) -> dict[str, Any]:
        """The last event of a kind, once it has this text; it is stored after the GPU is shown."""

        def last() -> dict[str, Any]:
            return next((event["data"] for event in reversed(self.events(kind))), {})

        self.until(lambda: says.items() <= last().items())
        return last()

    def told_of(self, job: str) -> list[str]:
        """The notifications about a job."""
        return [one["event"] for one in self.mailbox.got if one["job_id"] == job]

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.server.json("show", job))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for a consequence of readings."""
        give_up = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < give_up, "it did not come about"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def box(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    nvml = FakeNvml(fake_nvml_library, tmp_path_factory.mktemp("nvml") / "state")
    nvml.a100s(3)
    nvml.split(2, "3g.40gb", "3g.40gb")
    with a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment |= {f"GPU_SCHEDULER_{name}": value for name, value in SETTINGS.items()}
        for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
            server.environment[name] = nvml.env[name]
        with HttpReceiver() as mailbox:
            target = {"kind": "webhook", "url": mailbox.url, "for_jobs": True}
            targets = json.dumps({"people": target})
            server.environment["GPU_SCHEDULER_NOTIFICATIONS_TARGETS"] = targets
            server.tgpu("up", "--daemon", "--state-dir", state_dir)
            yield Box(server, nvml, mailbox)
            server.stop()


@pytest.fixture(autouse=True)
def clean(box: Box) -> Iterator[None]:
    """Every test begins with idle GPUs and leaves no job behind."""
    for index in (0, 1):
        box.nvml.gpu(index, compute=None, memory_used_mb=0, temperature=30, utilisation=50)
    yield
    with box.server.client() as client:
        for job in list(client.list(state=("running", "scheduled", "pending"))):
            client.cancel(job["id"])
            client.wait(job["id"], timeout=PATIENCE_S)


def test_job_over_gpu_memory_is_warned_and_stopped_and_neighbour_survives(box: Box) -> None:
    half = ("--gpus", "0.5", "--allowed-gpus", "0", "--retries", "3")
    greedy, greedy_pid = box.busy_job(*half)
    modest, modest_pid = box.busy_job(*half)
    box.nvml.gpu(0, compute=f"{greedy_pid}:60000,{modest_pid}:15000", memory_used_mb=75_000)
    box.until(lambda: box.job(greedy)["state"] == "failed")
    ended = box.job(greedy)
    assert ended["reason"] == (
        f"stopped for its GPU memory: it uses 60000 MiB of the memory of GPU 0 on "
        f"{box.gpu()['node']} and was given 40960"
    )
    assert ended["attempt"] == 1, "it is not tried again"
    log = box.server.tgpu("logs", greedy).stdout
    assert "tgpu: it uses 60000 MiB of the memory of GPU 0" in log
    assert "it is stopped in 0 s unless it gives some back" in log
    assert box.events("gpu_memory_warning")[-1]["data"]["used_mb"] == 60_000
    assert box.job(modest)["state"] == "running"
    assert Path(f"/proc/{modest_pid}").exists()


def test_idle_gpu_job_is_warned_and_stopped_unless_exempt(
    box: Box,
) -> None:
    box.nvml.gpu(0, utilisation=0)
    box.nvml.gpu(1, utilisation=0)
    idle, _ = box.busy_job("--gpus", "1")
    allowed, _ = box.busy_job("--gpus", "1", "--allow-idle")
    box.until(lambda: box.job(idle)["state"] == "failed")
    assert box.job(idle)["reason"].startswith("stopped for idle GPUs: its GPUs have been under 5 %")
    assert "tgpu: its GPUs have been under 5 %" in box.server.tgpu("logs", idle).stdout
    assert box.events("gpu_idle_warning")[-1]["job_id"] == idle
    assert box.job(allowed)["state"] == "running"
    until(lambda: box.told_of(idle), "its owner is told")
    assert (box.told_of(idle), box.told_of(allowed)) == (["idle"], [])


def test_foreign_process_is_shown_and_blocks_gpu_until_it_ends(box: Box) -> None:
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        box.nvml.gpu(0, compute=f"{stranger.pid}:4096", memory_used_mb=4100)
        box.until(lambda: box.gpu()["state"] == "foreign")
        shown = box.server.tgpu("gpus").stdout
        assert f":{stranger.pid} sleep (4 GB)" in shown
        assert f"GPU 0: process {stranger.pid} (sleep) of " in shown
        waits = box.server.submit("--gpus", "2", "--", "true")
        explained = box.server.json("explain", waits)
        assert f"process {stranger.pid} (sleep)" in json.dumps(explained["details"]["gpus"])
        stat = subprocess.run(
            [sys.executable, "-m", "gpustat", "--json"],
            env=box.nvml.env,
            capture_output=True,
            text=True,
            check=True,
        )
        seen = json.loads(stat.stdout)["gpus"][0]["processes"]
        ours = box.gpu()["processes"]
        assert [(p["pid"], p["gpu_memory_usage"]) for p in seen] == [
            (p["pid"], p["memory_mb"]) for p in ours
        ]
        assert [(p["username"], p["command"]) for p in seen] == [
            (p["user"], p["command"]) for p in ours
        ]
    finally:
        stranger.kill()
        stranger.wait()
    assert box.job(waits)["state"] == "pending"
    box.nvml.gpu(0, compute=None, memory_used_mb=0)
    box.until(lambda: box.job(waits)["state"] == "completed")


def test_gpu_is_reallocated_only_after_last_job_has_left(box: Box) -> None:
    first, pid = box.busy_job("--gpus", "1", "--allowed-gpus", "0")
    box.nvml.gpu(0, compute=f"{pid}:9000", memory_used_mb=9_100)
    box.until(lambda: bool(box.gpu()["processes"]))
    box.server.tgpu("cancel", first)
    box.until(lambda: box.job(first)["state"] == "cancelled")
    assert not Path(f"/proc/{pid}").exists()
    # The driver still lists the process, as after a driver crash.
    box.until(lambda: box.gpu()["state"] == "leaking")
    leak = box.last_event("gpu_leak", job=first)
    assert (leak["pid"], leak["memory_mb"]) == (pid, 9_000)
    assert leak["of_user"]
    told = f"is over, and process {pid} (sleep) of {leak['of_user']} still holds 9000 MiB"
    assert told in box.gpu()["why"]
    assert f"left by {first}: {leak['of_user']}:{pid} sleep" in box.server.tgpu("gpus").stdout
    health = json.loads(box.server.tgpu("health", "--json").stdout)
    assert health["status"] == "degraded"
    assert told in health["checks"]["gpus"]
    second = box.server.submit("--gpus", "1", "--allowed-gpus", "0", "--", "true")
    assert box.job(second)["state"] == "pending"
    box.nvml.gpu(0, compute=None, memory_used_mb=0)
    box.until(lambda: box.job(second)["state"] == "completed")


def test_unreleased_memory_holds_gpu_until_admin_resumes_it(box: Box) -> None:
    first, pid = box.busy_job("--gpus", "1", "--allowed-gpus", "0")
    box.nvml.gpu(0, compute=f"{pid}:9000", memory_used_mb=9_100)
    box.until(lambda: bool(box.gpu()["processes"]))
    box.nvml.gpu(0, compute=None)
    box.server.tgpu("cancel", first)
    box.until(lambda: box.gpu()["state"] == "leaking")
    assert "9100 MiB were not given back by the last job" in box.gpu()["why"]
    second = box.server.submit("--gpus", "1", "--allowed-gpus", "0", "--", "true")
    assert box.job(second)["state"] == "pending"
    box.server.tgpu("resume-gpu", "0")
    box.until(lambda: box.job(second)["state"] == "completed")


def test_detached_process_of_job_is_gone_before_gpu_is_free(box: Box) -> None:
    script = "env -i setsid sleep 300 & echo $!; sleep 0.2; exit 0"
    job = box.server.submit("--gpus", "1", "--", "sh", "-c", script)
    left = int(box.server.output(job).split()[0])
    assert not Path(f"/proc/{left}").exists()


def test_hot_gpu_gets_no_jobs_until_cooled_below_threshold(box: Box) -> None:
    box.nvml.gpu(0, temperature=91)
    box.until(lambda: box.gpu()["state"] == "hot")
    box.nvml.gpu(0, temperature=73)
    box.until(lambda: box.gpu()["temperature_c"] == 73)
    assert box.gpu()["state"] == "hot", "it is below the threshold, but not by enough"
    waits = box.server.submit("--gpus", "2", "--", "true")
    assert box.job(waits)["state"] == "pending"
    metrics = box.server.tgpu("metrics", "--raw").stdout
    assert 'gpu_condition{condition="hot",gpu="0"' in metrics
    box.nvml.gpu(0, temperature=60)
    box.until(lambda: box.job(waits)["state"] == "completed")
    assert box.events("gpu_hot")[-1]["data"]["temperature_c"] == 91
    assert box.events("gpu_cool")[-1]["data"]["temperature_c"] == 60


def test_gpu_with_xid_error_is_drained_until_admin_or_reset_resumes_it(box: Box) -> None:
    runs, _ = box.busy_job("--gpus", "1", "--allowed-gpus", "0")
    box.nvml.xid(0, 62)
    box.until(lambda: box.gpu()["state"] == "unhealthy")
    assert box.gpu()["why"] == "XID 62: the internal micro-controller halted"
    box.last_event("gpu_unhealthy", xid=62)
    assert box.job(runs)["state"] == "running", "what runs there goes on"
    waits = box.server.submit("--gpus", "0.1", "--allowed-gpus", "0", "--", "true")
    box.server.tgpu("cancel", runs)
    box.until(lambda: box.job(runs)["state"] == "cancelled")
    assert box.job(waits)["state"] == "pending"
    box.server.tgpu("resume-gpu", "0")
    box.until(lambda: box.job(waits)["state"] == "completed")
    box.nvml.gpu(1, ecc=3)
    box.until(lambda: box.gpu(1)["state"] == "unhealthy")
    box.nvml.gpu(1, ecc=0)
    box.until(lambda: box.gpu(1)["state"] == "free")


def test_energy_and_utilisation_of_job_are_recorded(box: Box) -> None:
    box.nvml.gpu(0, power_mw=360_000, utilisation=80)
    job, pid = box.busy_job("--gpus", "1", "--allowed-gpus", "0")
    box.nvml.gpu(0, compute=f"{pid}:5000", memory_used_mb=5_000)
    # 360 W are 0.1 Wh in a second.
    box.until(lambda: ((box.job(job)["measured"] or {}).get("energy_wh") or 0) > 0.05)
    box.nvml.gpu(0, compute=None, memory_used_mb=0)
    box.server.tgpu("cancel", job)
    box.until(lambda: box.job(job)["state"] == "cancelled")
    ended = box.job(job)
    measured = ended["measured"]
    began, end = (datetime.fromisoformat(ended[name]) for name in ("started_at", "ended_at"))
    most_wh = 360 * ((end - began).total_seconds() + 1) / 3600
    assert 0.05 < measured["energy_wh"] < most_wh
    assert measured["utilisation_percent"] == measured["peak_utilisation_percent"] == 80
    assert measured["peak_memory_mb"] == 5_000
    shown = box.server.tgpu("show", job).stdout
    assert "mean 80 %, peak 80 %" in shown
    assert " Wh" in shown
    assert " Wh" in box.server.tgpu("history").stdout
    usage = box.server.json("usage")["usage"]
    assert max(row["energy_kwh"] for row in usage) > 0


def test_mig_slices_are_allocated_one_by_one(box: Box) -> None:
    slices = {f"MIG-0002{place:04d}-58ce-5a9a-8f9a-dbc22a66a000" for place in (0, 1)}
    assert "A100 (2 x 3g.40gb)" in box.server.tgpu("gpus").stdout
    script = "echo $CUDA_VISIBLE_DEVICES; exec sleep 300"
    submit = ("--mig-profile", "3g.40gb", "--gpus", "1", "--", "sh", "-c", script)
    jobs = [box.server.submit(*submit) for _ in range(3)]
    given = []
    for job in jobs[:2]:
        box.until(lambda job=job: box.server.tgpu("logs", job).stdout.strip() != "")  # type: ignore[misc]
        given.append(box.server.tgpu("logs", job).stdout.strip())
    assert set(given) == slices
    assert box.job(jobs[2])["state"] == "pending"
    box.server.tgpu("cancel", jobs[0])
    box.until(lambda: box.server.tgpu("logs", jobs[2]).stdout.strip() == given[0])
    refused = box.server.tgpu("submit", "--mig", "7g.80gb", "--gpus", "1", "--", "true", code=2)
    assert "no node offers 1 x MIG 7g.80gb" in refused.stderr


def test_mig_layout_changes_while_jobs_run(box: Box) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES; exec sleep 300"

    def on_a_slice(profile: str) -> str:
        words = ("--mig-profile", profile, "--gpus", "1", "--", "sh", "-c", script)
        return box.server.submit(*words)

    def slice_of(job: str) -> str:
        box.until(lambda: box.server.tgpu("logs", job).stdout.strip() != "")
        return box.server.tgpu("logs", job).stdout.split()[0]

    try:
        loser = on_a_slice("3g.40gb")
        assert slice_of(loser).endswith("a000")
        box.nvml.split(2, "1g.10gb", "3g.40gb", era=1)
        box.until(lambda: "cannot be trusted" in box.server.tgpu("logs", loser).stdout)
        told = box.server.tgpu("logs", loser).stdout
        assert "its MIG slice 3g.40gb is not there any more" in told
        assert box.job(loser)["state"] == "running"
        # Both new slices are allocated, also the one with the profile of the destroyed slice.
        assert slice_of(on_a_slice("1g.10gb")).endswith("a001")
        assert slice_of(on_a_slice("3g.40gb")).endswith("a001")
        next_one = on_a_slice("3g.40gb")
        box.server.tgpu("cancel", loser)
        box.until(lambda: box.job(loser)["state"] == "cancelled")
        box.until(lambda: "A100 (1 x 1g.10gb, 1 x 3g.40gb)" in box.server.tgpu("gpus").stdout)
        assert box.job(next_one)["state"] == "pending", "what is gone is nobody's"
    finally:
        box.nvml.split(2, "3g.40gb", "3g.40gb")
