"""Servers and agents of the old and the new version work together.

`docs/howto/operations.md` promises that each speaks with the version before it: servers are
upgraded first, then agents, and a cluster runs with both versions in between.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, Process
from tests.ha_cluster import QUICK, Servers
from tests.launcher_rig import is_alive
from tests.postgres import shared_server
from tests.terminal import a_terminal
from tests.upgrade.installation import NEW_PACKAGE, Installation, clean_environment

SERVER, AGENT = "server", "agent"
WAITING = "echo before; until [ -e go ]; do sleep 0.1; done; echo after; exit 7"


class Versions:
    """The old and the new version side by side, and which one runs as server and as agent."""

    def __init__(self, directory: Path, old_package: Path) -> None:
        self.old = Installation(directory / "old", old_package)
        self.new = Installation(directory / "new", NEW_PACKAGE)
        self.parts = {SERVER: self.old, AGENT: self.old}

    def command(self, words: tuple[str, ...]) -> list[str]:
        """The command line of a part, in the version that was chosen for it."""
        return [*self.parts[words[0]].program, *words]


class MixedCluster(Cluster):
    """A cluster whose parts are of different versions; commands are those of the new one."""

    def __init__(self, directory: Path, versions: Versions) -> None:
        self.versions = versions
        super().__init__(directory)
        self.work = directory / "w"
        self.work.mkdir()
        self.environment = clean_environment()

    def _process(self, *words: str, log: str) -> Process:
        command = self.versions.command(words)
        return Process(command, self.directory / log, clean_environment())

    def replace_server(self, installation: Installation) -> None:
        """Stop the server, and start one of another version in its place."""
        self.server.stop()
        self.versions.parts[SERVER] = installation
        self.server.command = self.versions.command(tuple(self.server.command[3:]))
        self.start_server()

    def replace_agent(self, name: str, installation: Installation) -> None:
        """Stop an agent, and start one of another version in its place; jobs continue."""
        self.agents[name].stop()
        self.versions.parts[AGENT] = installation
        self.start_agent(name)
        self.wait_for_nodes(name)

    def log_of(self, job: str) -> str:
        with self.client() as client:
            return "".join(client.logs(job))

    def until_logged(self, job: str, text: str) -> None:
        self.until(lambda: text in self.log_of(job), f"{text!r} in the log of {job}")

    def ended(self, job: str) -> dict[str, Any]:
        with self.client() as client:
            return dict(client.wait(job, timeout=60))


@contextmanager
def a_directory() -> Iterator[Path]:
    """A short path that others may enter, as jobs of other users do."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster(old_package: Path) -> Iterator[MixedCluster]:
    """A cluster in which nothing runs yet."""
    with a_directory() as directory:
        mixed = MixedCluster(directory, Versions(directory, old_package))
        try:
            yield mixed
        finally:
            mixed.close()


def start(cluster: MixedCluster, script: str, *words: object) -> str:
    """Submit a job that prints `before`, and wait until it has."""
    job = cluster.submit("-D", cluster.work, *words, "--", "sh", "-c", script)
    cluster.until_logged(job, "before")
    return job


def runs_a_job(cluster: MixedCluster, *words: object) -> None:
    """A job that prints something and ends with an exit code."""
    job = cluster.submit(*words, "--", "sh", "-c", "echo hello; exit 3")
    ended = cluster.ended(job)
    assert (ended["state"], ended["exit_code"]) == ("failed", 3)
    assert cluster.log_of(job) == "hello\n"


@pytest.mark.parametrize("server", ["old", "new"])
def test_server_and_agent_of_different_versions_work_together(
    cluster: MixedCluster, server: str
) -> None:
    """Join, run, read logs, cancel, attach; reconnect after either side was killed."""
    versions = cluster.versions
    agent = "new" if server == "old" else "old"
    versions.parts = {SERVER: getattr(versions, server), AGENT: getattr(versions, agent)}
    cluster.start_server()
    cluster.start_agent("n1")
    cluster.wait_for_nodes()
    runs_a_job(cluster, "-G", 1)
    job = start(cluster, WAITING, "-G", 1)
    shell = start(cluster, "echo before; read word; exit $word", "--runner", "terminal")
    endless = start(cluster, "echo $$ > pid; echo before; sleep 1000", "-G", 1)

    cluster.server.kill()
    cluster.start_server()
    cluster.wait_for_nodes()
    runs_a_job(cluster, "-G", 1)
    cluster.agents["n1"].kill()
    cluster.start_agent("n1")
    runs_a_job(cluster, "-G", 1)

    cluster.tgpu("cancel", endless)
    assert cluster.ended(endless)["state"] == "cancelled"
    assert not is_alive(int((cluster.work / "pid").read_text()))
    (cluster.work / "go").touch()
    assert cluster.ended(job)["exit_code"] == 7
    assert cluster.log_of(job) == "before\nafter\n"
    with a_terminal(cluster.environment | {"TGPU_SERVER": str(cluster.state)}) as terminal:
        terminal.enter(f"tgpu attach {shell}")
        terminal.see("before")
        terminal.enter("9")
        assert cluster.ended(shell)["exit_code"] == 9


@pytest.mark.slow
def test_cluster_is_upgraded_step_by_step_under_running_jobs(cluster: MixedCluster) -> None:
    """First the server, then one agent after the other; a gang spans agents of both versions."""
    versions = cluster.versions
    cluster.start_server()
    for name in ("n1", "n2"):
        cluster.start_agent(name)
    cluster.wait_for_nodes()
    job = start(cluster, WAITING, "-G", 8)
    gang = start(cluster, WAITING, "-N", 2, "-G", 4)
    shell = start(cluster, "echo before; read word; exit $word", "--runner", "terminal")
    environment = cluster.environment | {"TGPU_SERVER": str(cluster.state)}
    with a_terminal(environment, program=versions.old.program) as terminal:
        terminal.enter(f"tgpu attach {shell}")
        terminal.see("before")
        cluster.replace_server(versions.new)
        cluster.wait_for_nodes()
        terminal.enter("9")
        assert cluster.ended(shell)["exit_code"] == 9
    runs_a_job(cluster)
    cluster.replace_agent("n2", versions.new)
    endless = "echo before; sleep 1000"
    mixed = start(cluster, endless, "-N", 2, "-c", 40)
    with cluster.client() as client:
        assert {part["node"] for part in client.get(mixed)["allocation"]} == {"n1", "n2"}
    cluster.replace_agent("n1", versions.new)
    runs_a_job(cluster)

    cluster.until(lambda: cluster.states(job, gang, mixed) == {"running"}, "all of them run")
    cluster.tgpu("cancel", mixed)
    assert cluster.ended(mixed)["state"] == "cancelled"
    (cluster.work / "go").touch()
    for each in (job, gang):
        assert cluster.ended(each)["exit_code"] == 7


class MixedServers(Servers):
    """Servers of both versions on one database, and agents of the old one."""

    def __init__(self, directory: Path, versions: Versions, **settings: str) -> None:
        self.versions = versions
        super().__init__(directory, **settings)

    def _process(self, *words: str, log: str) -> Process:
        command = self.versions.command(words)
        return Process(command, self.directory / log, self.environment)

    def start_as(self, name: str, installation: Installation) -> None:
        """Start a server of this version."""
        self.versions.parts[SERVER] = installation
        self.start(name)

    def runs_a_job_through(self, name: str) -> None:
        """Submit at one server, whichever leads, and read result and log there."""
        with self.only(name) as client:
            job = client.submit(["sh", "-c", "echo hello; exit 3"], gpu_count=1)
            assert client.wait(job.id, timeout=60)["exit_code"] == 3
            assert "".join(client.logs(job.id)) == "hello\n"


@pytest.mark.slow
def test_new_servers_follow_old_ones_whose_schema_they_change(old_package: Path) -> None:
    """A new server changes nothing while an old one leads; then it changes the schema and leads."""
    postgres = shared_server()
    url = postgres.make_database()
    with a_directory() as directory:
        versions = Versions(directory, old_package)
        cluster = MixedServers(directory, versions, **(QUICK | {"database_url": url}))
        try:
            cluster.start_as("s1", versions.old)
            assert cluster.leader() == "s1"
            cluster.token = cluster.until(cluster._join_token, "a join token")
            cluster.start_agent("n1")
            cluster.wait_for_nodes()
            with pytest.raises(AssertionError, match="'s1' still uses the older version"):
                cluster.start_as("s2", versions.new)
            cluster.runs_a_job_through("s1")
            cluster.servers["s1"].stop()
            cluster.start_as("s2", versions.new)
            assert cluster.leader() == "s2"
            cluster.start_agent("n2")  # the first one knows only the old server's address
            cluster.runs_a_job_through("s2")
            with pytest.raises(AssertionError, match="server s1 ended with 6"):
                cluster.start_as("s1", versions.old)
            cluster.runs_a_job_through("s2")
        finally:
            cluster.close()
            postgres.drop_database(url)
