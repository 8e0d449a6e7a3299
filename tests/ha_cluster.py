"""A real cluster with several servers: `tgpu server` processes on one PostgreSQL, and agents.

Everything is observed from outside. A restarted server keeps its ports and directory.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_scheduler import Client
from tests.cluster import Cluster, Process
from tests.ports import lasting_port
from tests.postgres import shared_server

QUICK = {"replication_heartbeat_interval_s": "0.5", "replication_heartbeat_timeout_s": "2"}
"""A failover takes two seconds, so that tests need not wait for the six of the default."""


class Servers(Cluster):
    """Servers by name, and agents that know all of them."""

    def __init__(self, directory: Path, **settings: str) -> None:
        super().__init__(directory, **settings)
        self.servers: dict[str, Process] = {}
        self._addresses: dict[str, dict[str, str]] = {}
        self._ports_of: dict[str, tuple[str, str]] = {}

    def start(self, name: str) -> None:
        """Start or restart a server, and wait until it answers."""
        state = self.directory / name
        process = self.servers.get(name)
        if process is None:
            process = self._process("server", "--state-dir", str(state), log=f"{name}.log")
            process.environment = process.environment | {"GPU_SCHEDULER_SERVER_NAME": name}
            self.servers[name] = process
            self._ports_of[name] = (str(lasting_port()), str(lasting_port()))
        http, nodes = self._ports_of[name]
        process.start("--http-port", http, "--grpc-port", nodes, "--metrics-port", "0")
        self._addresses[name] = self.until(lambda: self._facts_of(name), f"server {name} is up")

    def _facts_of(self, name: str) -> dict[str, str] | None:
        process = self.servers[name]
        assert process.process is not None
        code = process.process.poll()
        assert code is None, f"server {name} ended with {code}:\n{process.log()[-3000:]}"
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self.directory / name / "server.json").read_text("utf-8"))
            if facts["pid"] == process.pid:
                return {kind: str(facts[kind]) for kind in ("http", "nodes")}
        return None

    @property
    def nodes_address(self) -> str:
        """The addresses of all servers for agents."""
        return ",".join(known["nodes"] for known in self._addresses.values())

    def nodes_address_of(self, name: str) -> str:
        """The address of one server for agents."""
        return self._addresses[name]["nodes"]

    def address(self, *names: str) -> str:
        """The value for `--server` and TGPU_SERVER."""
        return ",".join(self._addresses[name]["http"] for name in names or self._addresses)

    def client(self) -> Client:
        return Client(self.address())

    def only(self, name: str) -> Client:
        """A client of one server."""
        return Client(self.address(name))

    def leadership(self, name: str) -> dict[str, Any]:
        """The leadership that a server reports."""
        with self.only(name) as client:
            return dict(client.health()["leadership"])

    def leader(self, *, other_than: str = "") -> str:
        """The name of the leader, once there is one."""

        def found() -> str:
            for name, process in self.servers.items():
                is_up = process.process is not None and process.process.poll() is None
                if name != other_than and is_up and self.leadership(name)["role"] == "leader":
                    return name
            return ""

        return self.until(found, "a server leads")

    def close(self) -> None:
        for process in self.servers.values():
            if process.process is not None and process.process.poll() is None:
                process.kill()
        super().close()


@contextlib.contextmanager
def several_servers(
    *names: str, agents: tuple[str, ...] = (), gpus: str = "4xH100", **settings: str
) -> Iterator[Servers]:
    """Servers of these names on one database, and agents, all connected."""
    postgres = shared_server()
    url = postgres.make_database()
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    cluster = Servers(directory, **({"database_url": url} | QUICK | settings))
    try:
        for name in names:
            cluster.start(name)
        cluster.token = cluster.until(cluster._join_token, "a join token")
        for agent in agents:
            cluster.start_agent(agent, gpus=gpus)
        if agents:
            cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.close()
        postgres.drop_database(url)
