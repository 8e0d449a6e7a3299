"""A real cluster on this machine: `tgpu server` and `tgpu agent` processes with declared GPUs.

Ports and directories are private to it. A restarted server keeps its ports, so that agents find it.
Everything is observed from outside: commands, the client, processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpu_scheduler import Client
from gpu_scheduler.client.errors import NoServer, TimedOut, Unreadable
from gpu_scheduler.model.errors import ClusterError, StoreError
from tests.ports import lasting_port

PROGRAM = (sys.executable, "-m", "gpu_scheduler")
LONGEST_S = 60.0
LOOK_AGAIN_S = 0.05
AWAY = (NoServer, Unreadable, TimedOut, ClusterError, StoreError, OSError)
T = TypeVar("T")


class Process:
    """A process of the cluster that can be stopped, killed, frozen and restarted."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.command = command
        self.log_file = log
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(LONGEST_S)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> int:
        """Wait until it exits by itself; returns its exit code."""
        assert self.process is not None
        return self.process.wait(LONGEST_S)

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def connections(self) -> int:
        """How often an agent has logged that it is connected."""
        return self.log().count('"message": "connected"')


class Cluster:
    """One server and its agents, below one directory. Make it with `a_cluster`."""

    def __init__(self, directory: Path, **settings: str) -> None:
        """`settings` as `nodes_suspect_after_s="2"` hold for the server and all agents."""
        self.directory = directory
        self.state = directory / "s"
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPU_SCHEDULER_", "TGPU_"))
        } | {f"GPU_SCHEDULER_{name.upper()}": value for name, value in settings.items()}
        self.server = self._process("server", "--state-dir", str(self.state), log="server.log")
        self.agents: dict[str, Process] = {}
        self.token = ""
        ports = {kind: str(lasting_port()) for kind in ("--http-port", "--grpc-port")}
        self._ports = [*(word for pair in ports.items() for word in pair), "--metrics-port", "0"]

    def _process(self, *words: str, log: str) -> Process:
        return Process([*PROGRAM, *words], self.directory / log, self.environment)

    # --- the server

    def start_server(self, *more: str) -> None:
        """Start it and wait until it answers, with its previous ports."""
        self.server.start(*self._ports, *more)
        self.until(self._facts, "the server is up")
        if not self.token:
            self.token = self.until(self._join_token, "a join token")

    def _join_token(self) -> str:
        with self.client() as client:
            token = client.call("POST", "/api/v1/nodes/tokens", {"uses": 1000})
        return str(token["token"])

    @property
    def nodes_address(self) -> str:
        """The address for agents."""
        return f"127.0.0.1:{self._ports[3]}"

    def _facts(self) -> dict[str, Any] | None:
        assert self.server.process is not None
        code = self.server.process.poll()
        assert code is None, f"the server ended with {code}:\n{self.server.log()[-3000:]}"
        with contextlib.suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((self.state / "server.json").read_text("utf-8"))
            return facts if facts["pid"] == self.server.pid else None
        return None

    # --- agents

    def agent(self, name: str, *more: str, gpus: str = "8xH100", server: str = "") -> Process:
        """An agent of that name that is not started yet."""
        return self._process(
            *("agent", "--server", server or self.nodes_address, "--name", name),
            *("--token", self.token, "--simulate", gpus),
            *("--work-dir", str(self.directory / name), *more),
            log=f"{name}.log",
        )

    def start_agent(self, name: str, *more: str, gpus: str = "8xH100") -> Process:
        """Start an agent, without waiting for it."""
        self.agents[name] = process = self.agent(name, *more, gpus=gpus)
        process.start()
        return process

    def wait_for_nodes(self, *names: str, state: str = "online") -> None:
        """Wait until these nodes (by default all that were started) are in a state."""
        wanted = set(names or self.agents)
        self.until(
            lambda: wanted <= {node["id"] for node in self.nodes() if node["state"] == state},
            f"{', '.join(sorted(wanted))}: {state}",
        )

    def nodes(self) -> list[dict[str, Any]]:
        with self.client() as client:
            return list(client.nodes())

    # --- commands and clients

    def client(self) -> Client:
        return Client(str(self.state))

    def tgpu(self, *words: object, code: int = 0, **variables: str) -> str:
        """Run a command and check its exit code; returns its output."""
        ended = subprocess.run(
            [*PROGRAM, *map(str, words)],
            capture_output=True,
            text=True,
            env=self.environment | {"TGPU_SERVER": str(self.state)} | variables,
            check=False,
            timeout=LONGEST_S,
        )
        assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr

    def json(self, *words: object) -> Any:
        return json.loads(self.tgpu(*words, "--json"))

    def submit(self, *words: object) -> str:
        """Submit, and return the id."""
        return self.tgpu("submit", "-q", *words).strip()

    def states(self, *jobs: str) -> set[str]:
        """The states of jobs."""
        with self.client() as client:
            return {client.get(job)["state"] for job in jobs}

    def node_of(self, job: str) -> str:
        """The node of the last attempt of a job."""
        with self.client() as client:
            attempts = client.attempts(job)["attempts"]
        return str(attempts[-1]["allocation"][0]["node"])

    def until(self, true: Callable[[], T | None], what: str, seconds: float = LONGEST_S) -> T:
        """Wait for a condition seen from outside; the server may be down meanwhile."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            with contextlib.suppress(*AWAY):
                if found := true():
                    return found
            time.sleep(LOOK_AGAIN_S)
        raise AssertionError(f"waited {seconds:g} s for: {what}\n{self.logs()}")

    def logs(self) -> str:
        """The last log lines of all processes, for debugging."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n{log.read_text('utf-8', 'replace')[-3000:]}" for log in logs
        )

    def close(self) -> None:
        """Kill every process that names the directory."""
        for part in (*self.agents.values(), self.server):
            if part.process is not None and part.process.poll() is None:
                part.kill()
        while kill_all_naming(self.directory):
            time.sleep(LOOK_AGAIN_S)
        shutil.rmtree(self.directory, ignore_errors=True)


def kill_all_naming(directory: Path) -> int:
    """SIGKILL every process that names the directory; returns their number."""
    killed = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            named = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if os.fsencode(directory) in named:
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


@contextlib.contextmanager
def a_cluster(*names: str, gpus: str = "8xH100", **settings: str) -> Iterator[Cluster]:
    """A server, and an agent for each name, all connected."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    cluster = Cluster(directory, **settings)
    try:
        cluster.start_server()
        for name in names:
            cluster.start_agent(name, gpus=gpus)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.close()
