"""`tgpu up` from an `Installation`, with everything private to it, seen from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler import Client
from gpu_scheduler.client.errors import NoServer, Unreadable
from tests.cluster import kill_all_naming
from tests.upgrade.installation import Installation, clean_environment

LONGEST_S = 90.0
LOOK_AGAIN_S = 0.05
ENDED = {"completed", "failed", "cancelled"}
T = TypeVar("T")


class Workstation:
    """A server, an agent and a launcher on one machine. Make it with `a_workstation`."""

    def __init__(self, directory: Path, installation: Installation, **settings: str) -> None:
        self.directory = directory
        self.installation = installation
        self.state = directory / "s"
        self.work = directory / "w"
        self.work.mkdir()
        usual = {"api_http_port": "0", "api_metrics_port": "0", "jobs_grace_s": "2"}
        self.environment = clean_environment(**(usual | settings)) | {
            "TGPU_SERVER": str(self.state)
        }

    # --- the scheduler itself

    def up(self, gpus: str = "32xA100-80GB") -> None:
        self.tgpu("up", "--daemon", "--state-dir", self.state, "--simulate", gpus)
        self.until(lambda: self.json("nodes")["nodes"][0]["state"] == "online", "an agent")

    def down(self) -> None:
        """Stop server and agent; jobs and their launcher continue."""
        self.tgpu("down", "--state-dir", self.state)

    def upgrade(self) -> None:
        """Stop, replace the installed files, start: what `docs/howto/operations.md` says."""
        self.down()
        self.installation.upgrade()
        self.up()

    def agent_pid(self) -> int:
        """The running agent, or the last one."""
        return _first_number(self.state / "agent" / "agent.lock")

    def launcher_pid(self) -> int:
        """The running launcher, or the last one."""
        return _first_number(self.state / "agent" / "launcher.lock")

    def watchdog_pid(self) -> int:
        """The process that ends jobs with expired leases; 0 if there never was one."""
        with suppress(OSError, ValueError):
            return _first_number(self.state / "agent" / "guard.pid")
        return 0

    # --- commands and clients

    def client(self) -> Client:
        return Client(str(self.state))

    def tgpu(self, *words: object, code: int | None = 0) -> str:
        """Run a command of the installed version and check its exit code; returns its output."""
        ended = subprocess.run(
            [*self.installation.program, *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.work,
            env=self.environment,
            check=False,
            timeout=LONGEST_S,
        )
        assert code in (None, ended.returncode), (ended.returncode, ended.stdout, ended.stderr)
        return ended.stdout

    def json(self, *words: object) -> Any:
        return json.loads(self.tgpu(*words, "--json"))

    def submit(self, *words: object) -> str:
        """Submit, and return the id."""
        return self.tgpu("submit", "-q", *words).strip()

    def job(self, job: str) -> dict[str, Any]:
        with self.client() as client:
            return dict(client.get(job))

    def ended(self, job: str) -> dict[str, Any]:
        """Wait until a job has ended."""
        with self.client() as client:
            return dict(client.wait(job, timeout=LONGEST_S))

    def log(self, job: str, **query: int) -> str:
        """The output of a job."""
        with self.client() as client:
            return "".join(client.logs(job, follow=False, **query)).replace("\r\n", "\n")

    def until(self, true: Callable[[], T | None], what: str) -> T:
        """Wait for a condition seen from outside."""
        give_up = time.monotonic() + LONGEST_S
        while True:
            with suppress(NoServer, Unreadable):
                if found := true():
                    return found
            assert time.monotonic() < give_up, f"waited {LONGEST_S:g} s for: {what}\n{self.logs()}"
            time.sleep(LOOK_AGAIN_S)

    def until_logged(self, job: str, text: str, **query: int) -> None:
        """Wait until a job has written something."""
        self.until(lambda: text in self.log(job, **query), f"{text!r} in the log of {job}")

    def logs(self) -> str:
        """The last log lines of all processes, for debugging."""
        found = (self.state / "server.log", *sorted((self.state / "agent").glob("*.log")))
        return "\n".join(
            f"--- {log.name}\n{log.read_text('utf-8', 'replace')[-3000:]}"
            for log in found
            if log.exists()
        )


def _first_number(file: Path) -> int:
    """The process id in a file, which is empty for a moment while a new process writes its own."""
    give_up = time.monotonic() + LONGEST_S
    while True:
        if words := file.read_text(encoding="ascii").split():
            return int(words[0])
        assert time.monotonic() < give_up, f"{file} is empty"
        time.sleep(LOOK_AGAIN_S)


@contextmanager
def a_workstation(old_package: Path, **settings: str) -> Iterator[Workstation]:
    """A workstation of the old version that is not started yet; it is removed afterwards."""
    # A short path, because sockets are below it.
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    try:
        yield Workstation(directory, Installation(directory / "v", old_package), **settings)
    finally:
        while kill_all_naming(directory):
            time.sleep(LOOK_AGAIN_S)
        shutil.rmtree(directory, ignore_errors=True)


def running_with(words: str) -> list[int]:
    """The processes whose command line contains these words, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int(entry.name) != os.getpid() and words.encode() in (
                entry / "cmdline"
            ).read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
    return found
