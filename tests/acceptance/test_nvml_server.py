"""The whole program on fake NVIDIA hardware: discovery, allocation, monitoring."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer
from tests.acceptance.nvml_box import a_box, box, fake_nvml, fake_nvml_library
from tests.fakes.nvml import FakeNvml

__all__ = ["box", "fake_nvml", "fake_nvml_library"]

PATIENCE_S = 60
DRIVER_NOT_LOADED = 9


def gpus(server: RealServer) -> list[dict[str, Any]]:
    with server.client() as client:
        return client.gpus()


def gpu(server: RealServer, index: int) -> dict[str, Any]:
    with server.client() as client:
        return client.gpus()[index]


def until(true: Callable[[], bool]) -> None:
    """Wait for a consequence of readings."""
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.05)


def test_gpus_are_discovered_allocated_and_monitored(box: tuple[RealServer, FakeNvml]) -> None:
    server, nvml = box
    first = gpu(server, 0)
    assert (first["model"], first["memory_mb"]) == ("A100", 81920)

    two = server.submit("--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert server.output(two) == "0,1\n"
    none = server.submit("--", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    assert server.output(none) == "[]\n"

    nvml.gpu(3, temperature=91)
    until(lambda: gpu(server, 3)["state"] == "hot")
    nvml.gpu(3, temperature=40)
    until(lambda: gpu(server, 3)["state"] == "free")

    stranger = subprocess.Popen(["sleep", "300"])
    try:
        nvml.gpu(0, compute=f"{stranger.pid}:4096", memory_used_mb=4100)
        until(lambda: gpu(server, 0)["state"] == "foreign")
        seen = gpu(server, 0)["processes"][0]
        assert (seen["pid"], seen["memory_mb"]) == (stranger.pid, 4096)
        eight = server.submit("--gpus", "8", "--", "true")
        one = server.submit("--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert server.output(one).strip() != "0"
        assert server.json("show", eight)["state"] == "pending"
    finally:
        stranger.kill()
        stranger.wait()
    nvml.gpu(0, compute=None, memory_used_mb=0)
    until(lambda: server.json("show", eight)["state"] == "completed")

    nvml.xid(5, 79)
    until(lambda: gpu(server, 5)["state"] == "unhealthy")


def test_gpu_load_is_reported_with_mean_and_peak(box: tuple[RealServer, FakeNvml]) -> None:
    server, _ = box

    def loads() -> list[tuple[str, str]]:
        metrics = server.tgpu("metrics").stdout
        return re.findall(r"GPU \d +([0-9.]+)% avg, (\d+)% peak", metrics)

    until(lambda: len(loads()) == 8)
    assert all(0 <= float(mean) <= int(peak) <= 100 for mean, peak in loads())


def test_process_of_job_is_attributed_to_it(box: tuple[RealServer, FakeNvml]) -> None:
    server, nvml = box
    job = server.submit("--gpus", "1", "--", "sh", "-c", "echo $$; exec sleep 60")
    until(lambda: server.tgpu("logs", job).stdout.strip() != "")
    pid = int(server.tgpu("logs", job).stdout)
    nvml.gpu(0, compute=f"{pid}:2048", memory_used_mb=2100)
    until(lambda: bool(gpu(server, 0)["processes"]))
    assert gpu(server, 0)["state"] == "used"
    assert gpu(server, 0)["processes"][0]["pid"] == pid
    nvml.gpu(0, compute=None, memory_used_mb=0)


def processes_of(server: RealServer) -> tuple[int, int]:
    """The pids of the server and of its agent."""
    pid = json.loads(Path(server.state_dir, "server.json").read_text())["pid"]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    agents = [
        int(child)
        for child in children
        if b"gpu_scheduler.agent" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert len(agents) == 1, children
    return pid, agents[0]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in _status(pid))


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_resumed_gpu_stays_resumed_after_kill(
    box: tuple[RealServer, FakeNvml],
) -> None:
    server, nvml = box
    nvml.xid(5, 79)
    until(lambda: gpu(server, 5)["state"] == "unhealthy")
    server_pid, agent_pid = processes_of(server)
    os.kill(agent_pid, signal.SIGSTOP)
    server.tgpu("resume-gpu", 5)
    kill(server_pid)
    kill(agent_pid)
    server.tgpu("up", "--daemon", "--state-dir", server.state_dir)
    until(lambda: gpu(server, 5)["state"] == "free")
    nvml.xid(5, 79)
    until(lambda: gpu(server, 5)["state"] == "unhealthy")
    kill(processes_of(server)[1])
    nvml.gpu(3, temperature=91)
    until(lambda: gpu(server, 3)["state"] == "hot")
    assert gpu(server, 5)["state"] == "unhealthy", "what it did later is not forgiven"


@pytest.mark.slow
def test_agent_finds_driver_loaded_after_its_start(fake_nvml: FakeNvml) -> None:
    fake_nvml.a100s(8)
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with a_box(fake_nvml) as (server, nvml):
        without = server.submit("--", "true")
        assert server.output(without) == ""
        assert "no GPU" in server.tgpu("submit", "--gpus", "2", "--", "true", code=2).stderr
        nvml.mend()
        until(lambda: len(gpus(server)) == 8)
        two = server.submit("--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert server.output(two) == "0,1\n"
        nvml.gpu(3, temperature=91)
        until(lambda: gpu(server, 3)["state"] == "hot")
