"""Shares of a GPU by NVIDIA's Multi-Process Service: real daemons, users and variables.

The driver and the control program are fakes, see tests/fakes; everything else is real.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.fakes.nvml import FakeNvml, fake_nvml_library

__all__ = ["fake_nvml_library"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
CONTROL = Path(__file__).parents[1] / "fakes" / "mps" / "nvidia-cuda-mps-control"
NOBODY = 65_534
UUID = "GPU-00000000-7d19-9063-b049-1e69664bb298"
PATIENCE_S = 60
SHOW = "env; nvidia-cuda-mps-control </dev/null && echo reached; echo end; exec sleep 300"


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.05)


class Box:
    """A server with one (fake) A100 and the (fake) control program on its PATH."""

    def __init__(self, server: RealServer, state_dir: str) -> None:
        self.server = server
        self.daemon = Path(state_dir) / "mps" / "0"

    def share(self, gpus: float, uid: int = 0) -> str:
        """A job with a share of the GPU, submitted by this user."""
        facts = json.loads((Path(self.server.state_dir) / "server.json").read_text())
        environment = {"PATH": self.server.environment["PATH"]}
        body = {"command": ["sh", "-c", SHOW], "gpu_count": gpus, "environment": environment}
        done = subprocess.run(
            [
                *("curl", "-s", "--noproxy", "*", f"{facts['http']}/api/v1/jobs"),
                *("-H", "Content-Type: application/json", "-d", json.dumps(body)),
            ],
            capture_output=True,
            check=True,
            user=uid,
            group=uid,
            cwd="/",
        )
        return str(json.loads(done.stdout)["job_id"])

    def variables(self, job: str) -> dict[str, str]:
        """What the job sees, and whether it `reached` its daemon."""
        # No log can be read while the agent is down; it is back when the job is shown as running.
        until(lambda: self.server.json("show", job)["state"] == "running")
        until(lambda: "end\n" in self.server.tgpu("logs", job).stdout)
        lines = self.server.tgpu("logs", job).stdout.splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        return found | {"reached": "yes" if "reached" in lines else "no"}

    def pid(self) -> int:
        return int((self.daemon / "pipe" / "nvidia-cuda-mps-control.pid").read_text())

    def cancel(self, *jobs: str) -> None:
        with self.server.client() as client:
            for job in jobs:
                client.cancel(job)
                client.wait(job, timeout=PATIENCE_S)

    def kill_agent(self) -> None:
        lock = Path(self.server.state_dir) / "agent" / "agent.lock"
        old = lock.read_text().partition("\n")[0]
        os.kill(int(old), signal.SIGKILL)
        until(lambda: lock.read_text().partition("\n")[0] not in {"", old})


@pytest.fixture(scope="module")
def box(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    nvml = FakeNvml(fake_nvml_library, tmp_path_factory.mktemp("nvml") / "state")
    nvml.a100s(1)
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory, a_state_dir() as state_dir:
        programs = Path(directory)
        programs.chmod(0o755)
        shutil.copy(CONTROL, programs)
        server = RealServer(state_dir)
        for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
            server.environment[name] = nvml.env[name]
        server.environment["PATH"] = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        server.tgpu("up", "--daemon", "--state-dir", state_dir)
        yield Box(server, state_dir)
        server.stop()


@pytest.fixture(autouse=True)
def clean(box: Box) -> Iterator[None]:
    """The GPU is free when the next test begins."""
    yield
    with box.server.client() as client:
        active = [job["id"] for job in client.list(state=("running", "scheduled", "pending"))]
    box.cancel(*active)
    until(lambda: not box.daemon.exists())


def facts_of(pid: int) -> dict[str, Any]:
    """The user and the environment of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    uid = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return {"uids": set(map(int, uid)), **dict(v.split("=", 1) for v in variables if "=" in v)}


def test_shares_of_one_user_use_one_mps_daemon_and_other_users_are_time_sliced(
    box: Box,
) -> None:
    first, second = box.share(0.4), box.share(0.25)
    seen = [box.variables(job) for job in (first, second)]
    for variables, percent, limit in zip(seen, ("40", "25"), (32768, 20480), strict=True):
        assert variables["TGPU_GPU_SHARING"] == "mps"
        assert variables["CUDA_VISIBLE_DEVICES"] == UUID
        assert variables["CUDA_MPS_PIPE_DIRECTORY"] == f"{box.daemon}/pipe"
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent
        assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={limit}M"
        assert variables["reached"] == "yes"
    daemon = facts_of(box.pid())
    assert daemon["uids"] == {0}
    assert daemon["CUDA_VISIBLE_DEVICES"] == UUID
    log = (box.daemon / "log" / "control.log").read_text()
    assert log.count("start uid=0") == 1

    other = box.variables(box.share(0.2, NOBODY))
    assert other["TGPU_GPU_SHARING"] == "time_slicing"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in other
    assert other["CUDA_VISIBLE_DEVICES"] == "0"

    pid = box.pid()
    box.kill_agent()
    assert box.pid() == pid, "it outlives the agent"
    third = box.share(0.1)
    assert box.variables(third)["reached"] == "yes"
    box.cancel(first, second)
    assert box.pid() == pid, "somebody still uses it"
    box.cancel(third)
    until(lambda: not Path(f"/proc/{pid}").exists() and not box.daemon.exists())


def test_mps_daemon_runs_as_job_user_and_is_replaced_after_death(box: Box) -> None:
    first = box.share(0.4, NOBODY)
    assert box.variables(first)["reached"] == "yes"
    pid = box.pid()
    assert facts_of(pid)["uids"] == {NOBODY}
    assert (box.daemon / "pipe").stat().st_mode & 0o777 == 0o700
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    second = box.share(0.4, NOBODY)
    assert box.variables(second)["reached"] == "yes"
    assert facts_of(box.pid())["uids"] == {NOBODY}
    last = box.pid()
    box.cancel(first, second)
    until(lambda: not Path(f"/proc/{last}").exists())


def test_whole_gpu_needs_no_mps_daemon(box: Box) -> None:
    job = box.share(1)
    assert "TGPU_GPU_SHARING" not in box.variables(job)
    assert not box.daemon.exists()
