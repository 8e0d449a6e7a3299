"""A real server with its agent and launcher that tests kill and restart, observed from outside.

Only public interfaces are used: processes are found by their command lines, answers come through
the public client.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler import Client
from gpu_scheduler.client.errors import NoServer, TimedOut, Unreadable
from gpu_scheduler.client.requests import API, decoded
from gpu_scheduler.model.errors import ClusterError, StoreError

T = TypeVar("T")
LONGEST_S = 120.0
TRY_AGAIN_S = 0.05
AWAY = (NoServer, Unreadable, TimedOut, ClusterError, StoreError, OSError)
"""Errors after which a client retries while a server is down."""


class SingleServer:
    """One state directory and everything that runs on it."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.notes = directory / "notes"
        self.notes.mkdir(exist_ok=True)
        self.server: subprocess.Popen[bytes] | None = None
        self._log = directory / "server.log"
        self._settings = {
            f"GPU_SCHEDULER_{name.upper()}": value for name, value in settings.items()
        }

    # --- processes

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "gpu_scheduler", "up", "--state-dir", str(self.state)),
            *("--simulate", "8xA100-80GB", "--http-port", "0", "--metrics-port", "0", *more),
        ]

    def spawn(self, *more: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the server, without waiting for it."""
        variables = os.environ | self._settings | dict(environment or {})
        with self._log.open("ab") as log:
            self.server = subprocess.Popen(
                self.command(*more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def start(self, *more: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the server and wait until it has announced itself."""
        self.spawn(*more, environment=environment)
        self.until(self.is_up, "the server is up")

    def is_up(self) -> bool:
        """Whether the server has announced itself; it must not have exited instead."""
        assert self.server is not None
        code = self.server.poll()
        assert code is None, f"the server ended with {code}:\n{self.log()[-3000:]}"
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self.state / "server.json").read_text(encoding="utf-8"))
            return bool(facts["pid"] == self.server.pid)
        return False

    def refused(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Start a server that is expected to exit by itself, and wait for that."""
        return subprocess.run(
            self.command(*more),
            env=os.environ | self._settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )

    def kill_server(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def stop(self) -> int:
        """Ask the server to stop; returns its exit code."""
        assert self.server is not None
        self.server.terminate()
        return self.server.wait(LONGEST_S)

    def agents(self) -> list[int]:
        """Every agent of this server."""
        return self._find(b"gpu_scheduler.agent\0", str(self.state / "agent" / "agent.json"))

    def launchers(self) -> list[int]:
        """Every process of this server's launcher.

        A starting job looks like one too, but has its own session.
        """
        found = self._find(b"gpu_scheduler.agent.launcher\0", str(self.state / "agent"))
        return [pid for pid in found if not _is_led_by_itself(pid, found)]

    def _find(self, module: bytes, argument: str) -> list[int]:
        wanted = os.fsencode(argument) + b"\0"
        return [pid for pid, line in _command_lines() if module in line and line.endswith(wanted)]

    def kill(self, find: Callable[[], list[int]]) -> int:
        """SIGKILL all that `find` finds; returns their number."""
        killed = 0
        for pid in find():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed

    def close(self) -> None:
        """Kill everything that is left."""
        if self.server is not None and self.server.poll() is None:
            self.kill_server()
        # In this order no process is left that would restart another.
        for find in (self.agents, self.launchers):
            while self.kill(find):
                pass
        for pid, _ in self.witnesses():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def witnesses(self) -> list[tuple[int, bytes]]:
        """The number of running jobs."""
        name = os.fsencode(self.directory / "witness") + b"\0"
        return [(pid, line) for pid, line in _command_lines() if line == name]

    def release_jobs(self) -> None:
        """Release the jobs that run until they are told to end."""
        (self.directory / "end").touch()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def tracebacks(self) -> list[str]:
        """Unexpected tracebacks in the logs."""
        logs = [self._log, *(self.state / "agent").glob("*.log")]
        texts = {log.name: log.read_text(encoding="utf-8", errors="replace") for log in logs}
        return [
            f"{name}: {text[text.index('Traceback') :][-1500:]}"
            for name, text in texts.items()
            if "Traceback" in text
        ]

    # --- the public interface

    def client(self) -> Client:
        return Client(str(self.state))

    def get(self, path: str) -> Any:
        """Repeat a request until the server answers."""

        def ask() -> Any:
            with contextlib.suppress(*AWAY), self.client() as client:
                return client.call("GET", f"{API}{path}")
            return None

        return self.until(ask, f"an answer to {path}")

    def jobs(self, **query: object) -> list[dict[str, Any]]:
        """All jobs, page by page."""

        def ask() -> list[dict[str, Any]] | None:
            with contextlib.suppress(*AWAY), self.client() as client:
                return list(client.list(**query))
            return None

        answer: list[dict[str, Any]] | None = None
        give_up = time.monotonic() + LONGEST_S
        while answer is None:
            assert time.monotonic() < give_up, f"no list of jobs:\n{self.log()[-3000:]}"
            answer = ask()
            if answer is None:
                time.sleep(TRY_AGAIN_S)
        return answer

    def submit(self, body: Mapping[str, Any]) -> str:
        """Submit with one idempotency key, until it is acknowledged."""
        with self.client() as client:
            return submit_until_acknowledged(client, body)

    def until(self, true: Callable[[], T], what: str, longest_s: float = LONGEST_S) -> T:
        """Wait for a condition; a timeout names it."""
        give_up = time.monotonic() + longest_s
        while not (found := true()):
            assert time.monotonic() < give_up, (
                f"waited {longest_s:g} s in vain for: {what}\n{self.log()[-3000:]}"
            )
            time.sleep(TRY_AGAIN_S)
        return found


def submit_until_acknowledged(
    client: Client, body: Mapping[str, Any], is_over: Callable[[], bool] = lambda: False
) -> str:
    """Repeat a submission until it is answered; returns the id of the job.

    Empty if it `is_over` before: then the outcome is unknown.
    """
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": os.urandom(16).hex()}
    give_up = time.monotonic() + LONGEST_S
    while not is_over():
        try:
            answer, data = client.connection.request("POST", f"{API}/jobs", headers, content)
            return str(decoded(answer.status, data)["job_id"])
        except AWAY as error:
            client.close()
            if time.monotonic() > give_up:
                raise AssertionError(f"not acknowledged for {LONGEST_S:g} s: {error}") from error
            time.sleep(TRY_AGAIN_S)
    return ""


@contextlib.contextmanager
def a_single_server(**settings: str) -> Iterator[SingleServer]:
    """A server with a compiled witness program.

    Its path is short: a Unix socket path has 107 bytes.
    """
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    scheduler = SingleServer(directory, **settings)
    try:
        build_witness(directory / "witness")
        yield scheduler
    finally:
        scheduler.close()


def build_witness(target: Path) -> None:
    compile_c("witness.c", target, "-O1")


def compile_c(source: str, target: Path, *flags: str) -> None:
    import pytest

    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, so the jobs that bear witness cannot be built")
    text = str(Path(__file__).with_name(source))
    subprocess.run([compiler, "-Wall", "-Werror", *flags, text, "-o", str(target)], check=True)


def wait_for_change(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for so long, or less if the process exits."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)


def _is_led_by_itself(pid: int, parents: list[int]) -> bool:
    """Whether a process is a child of one of these with its own session, or gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    parent, _, session = map(int, status.rpartition(")")[2].split()[1:4])
    return parent in parents and session == pid


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()
