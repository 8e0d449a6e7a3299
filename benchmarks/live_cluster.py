"""A real server on PostgreSQL for measures, with many agents.

Some are real, each with a launcher of its own; the others are light and speak the real protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.live import cpu_seconds_of, wait_until
from gpu_scheduler.client.client import Client
from tests.cluster import kill_all_naming
from tests.postgres import URL_VARIABLE, Postgres, a_server

DURABLE = {"fsync": "on", "full_page_writes": "on"}
START_S = 60.0
Child = subprocess.Popen[bytes]


class LiveCluster:
    """One `tgpu server`, real agents, one process of light ones. Make it with `live_cluster`."""

    def __init__(self, directory: Path, database_url: str) -> None:
        """Nothing runs yet."""
        self.directory = directory
        self.database_url = database_url
        self.client = Client(str(directory))
        self.server: Child | None = None
        self.agents: Child | None = None
        self.real_agents: list[Child] = []
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GPU_SCHEDULER_", "TGPU_"))
        } | ({"GPU_SCHEDULER_DATABASE_URL": database_url} if database_url else {})

    def start_server(self) -> None:
        """Start it and wait until it answers."""
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        self.server = self._tgpu("server", "--state-dir", str(self.directory), *ports)
        pid = self.server.pid
        wait_until(lambda: self._announced().get("pid") == pid, START_S)

    def start_real_agents(self, count: int, *, cordoned: bool = False) -> None:
        """Start agents as on nodes, with eight declared devices each, and wait for them."""
        token = self.client.call("POST", "/api/v1/nodes/tokens", {"uses": count})["token"]
        address = str(self._announced()["nodes"])
        for number in range(count):
            name = f"real-{number}"
            words = ("--name", name, "--work-dir", str(self.directory / name))
            joining = ("--server", address, "--token", token, "--simulate", "8xA100-80GB")
            self.real_agents.append(self._tgpu("agent", *words, *joining))
        wait_until(lambda: self.client.status()["online_nodes"] >= count, START_S)
        for number in range(count if cordoned else 0):
            self.client.call("POST", f"/api/v1/nodes/real-{number}/cordon", {})

    def start_agents(self, count: int, run_ms: int = 0) -> None:
        """Start light agents and wait until all of them are online, beside the real ones."""
        target = f"unix:{self.directory / 'agent.sock'}"
        words = ("--target", target, "--count", str(count), "--run-ms", str(run_ms))
        before = self.client.status()["online_nodes"]
        self.agents = subprocess.Popen([sys.executable, "-m", "benchmarks.light_agents", *words])
        wait_until(lambda: self.client.status()["online_nodes"] >= count + before, START_S)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of server and agents."""
        found = {}
        for kind, child in (("server", self.server), ("agents", self.agents)):
            if child is not None:
                found[kind] = cpu_seconds_of(child.pid)
        return found

    def stop(self) -> None:
        """End all, at once, the launchers of real agents too."""
        self.client.close()
        for child in (*self.real_agents, self.agents, self.server):
            if child is not None:
                child.kill()
                child.wait()
        kill_all_naming(self.directory)

    def _tgpu(self, *words: str) -> Child:
        with (self.directory / "out.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gpu_scheduler", *words],
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _announced(self) -> dict[str, Any]:
        """What the server has written down about itself."""
        with contextlib.suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((self.directory / "server.json").read_bytes())
            return facts
        return {}


@contextlib.contextmanager
def live_cluster(*, postgres: bool = True) -> Iterator[LiveCluster]:
    """A server in a directory of its own, on a database of its own; all of it goes at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        url = ""
        if postgres:
            given = os.environ.get(URL_VARIABLE)
            server = Postgres(given) if given else stack.enter_context(a_server(**DURABLE))
            url = server.make_database()
            stack.callback(server.drop_database, url)
        cluster = LiveCluster(directory, url)
        stack.callback(cluster.stop)
        cluster.start_server()
        yield cluster
