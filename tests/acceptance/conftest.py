"""One real server per test file: `tgpu up` on declared GPUs, in a private state directory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler import Client
from gpu_scheduler.model.errors import WrongState

PROGRAM = (sys.executable, "-m", "gpu_scheduler")
LONGEST_S = 60


class RealServer:
    """A running `tgpu up` and ways to call it."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPU_SCHEDULER_", "TGPU_"))
        } | {
            "TGPU_SERVER": state_dir,
            "GPU_SCHEDULER_API_HTTP_PORT": "0",
            "GPU_SCHEDULER_API_METRICS_PORT": "0",
            "GPU_SCHEDULER_JOBS_GRACE_S": "2",
        }

    def start(self, gpus: str) -> None:
        self.tgpu("up", "--daemon", "--state-dir", self.state_dir, "--simulate", gpus)

    def stop(self) -> None:
        """Kill everything that is left of it, jobs and agent included."""
        with self.client() as client:
            for job in list(client.list(state=("running", "scheduled", "preempted", "pending"))):
                # The process may exit at this moment.
                with suppress(WrongState):
                    client.cancel(job["id"])
            for job in list(client.list()):
                client.wait(job["id"], timeout=LONGEST_S)
        self.tgpu("down", "--state-dir", self.state_dir)

    def tgpu(
        self, *words: object, code: int = 0, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code."""
        ended = subprocess.run(
            [*PROGRAM, *map(str, words)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=self.environment | variables,
            check=False,
            timeout=LONGEST_S,
        )
        assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
        return ended

    def json(self, *words: object) -> Any:
        """The JSON output of a command."""
        return json.loads(self.tgpu(*words, "--json").stdout)

    def submit(self, *words: object, cwd: Path | None = None, **variables: str) -> str:
        """Submit, and return the id."""
        return self.tgpu("submit", "-q", *words, cwd=cwd, **variables).stdout.strip()

    def output(self, job: str) -> str:
        """Wait for the end of a job, and return its output."""
        self.json("wait", job)
        return self.tgpu("logs", job).stdout

    def client(self) -> Client:
        """The Python client."""
        return Client(self.state_dir)


def kill_leftovers(state_dir: str) -> None:
    """Kill every process that names the directory, which is private to one test file."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            named = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if state_dir.encode() in named:
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


@contextmanager
def a_state_dir() -> Iterator[str]:
    """A short private directory; its processes are killed at the end."""
    state_dir = tempfile.mkdtemp(prefix="tgpu-")
    try:
        yield state_dir
    finally:
        kill_leftovers(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    """Eight declared GPUs, shared by the tests of one file."""
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        running.start("8xA100-80GB")
        yield running
        running.stop()
