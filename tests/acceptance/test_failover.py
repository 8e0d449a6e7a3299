"""Several real servers on a real PostgreSQL: one leads, and a standby takes over."""

import http.client
import json
import os
import pwd
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler import Client
from gpu_scheduler.client.errors import NoServer, Unreadable
from gpu_scheduler.model.errors import ClusterError, StoreError
from tests.acceptance.test_services import options
from tests.cluster import PROGRAM
from tests.ha_cluster import Servers, several_servers
from tests.terminal import a_terminal, needs_tmux

LONG_LEASE = {"replication_heartbeat_timeout_s": "600"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Servers]:
    with several_servers("a", "b", agents=("n1",)) as cluster:
        yield cluster


def raw(address: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """A request on an open connection; call the result to read the response."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"} | headers)

    def answer() -> tuple[int, dict[str, str], Any]:
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, {k.lower(): v for k, v in reply.headers.items()}, json.loads(content)

    return answer


def test_standby_serves_reads_and_forwards_writes(cluster: Servers) -> None:
    leader = cluster.leader()
    standby = next(name for name in cluster.servers if name != leader)
    job = {"command": ["sleep", "0"], "gpu_count": 1}
    address = cluster.address(standby)

    def created_and_not_read_yet() -> dict[str, Any] | None:
        status, headers, made = raw(address, "POST", "/api/v1/jobs", job)()
        assert (status, headers["x-tgpu-role"]) == (201, "leader")
        status, headers, _ = raw(address, "GET", f"/api/v1/jobs/{made['job_id']}")()
        assert status == 200
        return made if headers["x-tgpu-role"] == "leader" else None

    # The standby may have refreshed its state between the two.
    made = cluster.until(created_and_not_read_yet, "the cluster state is older than the job")
    path = f"/api/v1/jobs/{made['job_id']}"

    def read_here() -> tuple[int, dict[str, str], Any] | None:
        answer: tuple[int, dict[str, str], Any] = raw(address, "GET", path)()
        return answer if answer[1]["x-tgpu-role"] == "standby" else None

    status, headers, found = cluster.until(read_here, "the standby has read it")
    assert status == 200
    assert int(headers["x-tgpu-age-ms"]) >= 0
    assert found["user"] == pwd.getpwuid(os.getuid()).pw_name, "as the standby's kernel says"
    with cluster.only(standby) as client:
        assert client.wait(made["job_id"], 30)["state"] == "completed"
        assert "".join(client.logs(made["job_id"])) == ""
        with closing(client.events(after=0)) as events:
            assert next(events)["sequence"] == 1
        told = cluster.leadership(standby)
    assert (told["role"], told["leader"]) == ("standby", leader)
    wait_for_standbys(cluster, leader, standby)
    text = cluster.tgpu("status", TGPU_SERVER=cluster.address(standby))
    assert f"leader: {leader} at {cluster.address(leader)}, term " in text
    assert f"standby: {standby}" in text


def wait_for_standbys(cluster: Servers, leader: str, *names: str) -> None:
    """Wait until the leader lists exactly these standbys; it refreshes them at every heartbeat."""
    cluster.until(
        lambda: [one["name"] for one in cluster.leadership(leader)["standbys"]] == [*names],
        f"{leader} says that {names} stand by",
    )


def test_agent_that_knows_only_a_standby_joins_and_runs_jobs(cluster: Servers) -> None:
    standby = next(name for name in cluster.servers if name != cluster.leader())
    agent = cluster.agent("n2", gpus="1xT4", server=cluster.nodes_address_of(standby))
    cluster.agents["n2"] = agent
    anywhere = {"TGPU_SERVER": cluster.address()}
    agent.start()
    try:
        cluster.wait_for_nodes("n2")
        cluster.tgpu("run", "--nodelist", "n2", "--gpus", "1", "--", "true", **anywhere)
    finally:
        agent.stop()
        del cluster.agents["n2"]


def test_standby_returns_consistent_reads_after_each_write(cluster: Servers) -> None:
    leader = cluster.leader()
    standby = next(name for name in cluster.servers if name != leader)
    at = {"TGPU_SERVER": cluster.address(standby)}
    for word, state in (("cordon", "cordoned"), ("uncordon", "online")):
        cluster.tgpu("nodes", word, "n1", **at)
        assert state in cluster.tgpu("nodes", **at)
    user = pwd.getpwuid(os.getuid()).pw_name
    secret = cluster.tgpu("token", "create", "-q", "-u", user, **at).strip()
    bearer = {"Authorization": f"Bearer {secret}"}
    assert raw(cluster.address(standby), "GET", "/api/v1/jobs", **bearer)()[0] == 200
    cluster.tgpu(
        *("service", "create", "web", "--gpus", "1", "--replicas", "2", "--wait"),
        *options(cluster, "web"),
        **at,
    )
    found = json.loads(cluster.tgpu("service", "endpoints", "web", "--json", **at))["endpoints"]
    assert len(found) == 2
    cluster.tgpu("service", "delete", "web", "--wait", **at)
    with cluster.only(leader) as client, cluster.only(standby) as there:
        for _ in range(5):
            job = client.submit(["sleep", "300"], gpus=1)
            cluster.until(lambda job=job: job.state() == "running", "it runs")
            assert [place["node"] for place in there.get(job.id)["allocation"]] == ["n1"]
            job.cancel()


def test_forwarded_identity_header_from_outside_is_ignored(cluster: Servers) -> None:
    address = cluster.address(cluster.leader())
    forged = {"x-tgpu-vouched": "eyJ1aWQiOjB9.0123"}
    status, _, body = raw(address, "POST", "/api/v1/jobs", {"command": ["id"]}, **forged)()
    assert (status, body["code"]) == (403, "not_vouched")


@needs_tmux
def test_terminal_works_through_standby_and_reconnects_after_leader_is_killed(
    cluster: Servers,
) -> None:
    leader = cluster.leader()
    standby = next(name for name in cluster.servers if name != leader)
    with a_terminal(cluster.environment | {"TGPU_SERVER": cluster.address(standby)}) as terminal:
        terminal.enter("PS1='in> ' tgpu shell -q -G 1 -- bash --norc --noprofile")
        terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
        terminal.enter("number=41")
        assert terminal.answer("stty size") == "30 100"
        cluster.servers[leader].kill()
        terminal.see("lost (the connection to the leader failed); reconnecting")
        terminal.see("reconnected to job-")
        terminal.press("Enter")
        terminal.until(lambda screen: screen.rstrip().endswith("in>"), "the shell's prompt")
        assert terminal.answer("echo $((number + 1))") == "42"
        terminal.enter("exit 6")
        terminal.until(lambda screen: screen.rstrip().endswith("here>"), "our own prompt")
        assert terminal.answer("echo $?") == "6"
        terminal.enter("clear; tgpu attach 999")
        terminal.see("999 is not known")
    cluster.start(leader)


def test_standby_replaces_killed_leader_and_jobs_continue(cluster: Servers) -> None:
    leader = cluster.leader()
    term = cluster.leadership(leader)["term"]
    with cluster.client() as client:
        running = client.submit(["sleep", "300"], gpus=1)
        cluster.until(lambda: running.state() == "running", "it runs")
        standby = next(name for name in cluster.servers if name != leader)
        with cluster.only(standby) as other_client:
            up_s = other_client.health()["uptime_seconds"]
        cluster.servers[leader].kill()
        after = client.submit(["true"], gpus=1)
        assert client.wait(after.id, 60)["state"] == "completed"
        assert running.state() == "running"
        assert running.info()["attempt"] == 1
        running.cancel()
    other = cluster.leader(other_than=leader)
    assert cluster.leadership(other)["term"] > term
    with cluster.only(other) as client:
        assert client.health()["uptime_seconds"] > up_s, "it is the same server as before"
    cluster.start(leader)
    cluster.until(lambda: cluster.leadership(leader)["role"] == "standby", "it stands by")


@pytest.mark.slow
def test_thawed_former_leader_answers_nothing_as_leader(
    cluster: Servers,
) -> None:
    leader = cluster.leader()
    term = cluster.leadership(leader)["term"]
    other = next(name for name in cluster.servers if name != leader)
    address = cluster.address(leader)
    with cluster.only(other) as client:
        job = client.submit(["sleep", "300"], gpus=1)
        cluster.until(lambda: job.state() == "running", "it runs")
    frozen = cluster.servers[leader]
    frozen.freeze()
    try:
        # The requests wait in its socket buffers, and it reads them when it thaws.
        read = raw(address, "GET", f"/api/v1/jobs/{job.id}")
        change = raw(address, "POST", "/api/v1/jobs", {"command": ["echo", "from the past"]})
        assert cluster.leader(other_than=leader) == other
        with cluster.only(other) as client:
            client.cancel(job.id)
            assert client.wait(job.id, 60)["state"] == "cancelled"
    finally:
        frozen.thaw()
    for answer in (read, change):
        status, headers, body = answer()
        if headers.get("x-tgpu-role") == "leader" and status < 500:
            # It already knew that it is a standby, and forwarded the request to the new leader.
            assert int(headers["x-tgpu-term"]) > term, (status, headers, body)
        if status == 200:
            assert body["state"] == "cancelled", "a standby says how it is now"
        elif status != 201:
            assert (status, body["code"]) == (503, "not_leader")
    cluster.until(lambda: cluster.leadership(leader)["role"] == "standby", "it stands by")
    with cluster.only(leader) as client:
        again = client.submit(["true"])
        assert client.wait(again.id, 60)["state"] == "completed"


def test_stopping_leader_hands_over_and_its_clients_continue() -> None:
    """Handover does not wait for the lease to expire, which would exceed every timeout here."""
    with several_servers("a", "b", agents=("n1",), **LONG_LEASE) as cluster:
        leader = cluster.leader()
        other = next(name for name in cluster.servers if name != leader)
        agent = cluster.agents["n1"]
        connections = agent.connections()
        both = cluster.address(leader, other)
        submitters = [Submitter(both, Path(os.devnull), pause_s=0.0) for _ in range(6)]
        for submitter in submitters:
            submitter.start()
        cluster.until(
            lambda: all(submitter.acknowledged for submitter in submitters), "they submit"
        )
        said_before = len(cluster.servers[leader].log())
        cluster.servers[leader].stop()
        assert cluster.leader(other_than=leader) == other
        cluster.until(lambda: agent.connections() > connections, "the agent is at the next leader")
        seen = {submitter: len(submitter.acknowledged) for submitter in submitters}
        cluster.until(lambda: all(len(p.acknowledged) > n for p, n in seen.items()), "they go on")
        for submitter in submitters:
            submitter.finish()
        assert not [error for submitter in submitters for error in submitter.errors]
        said = cluster.servers[leader].log()[said_before:]
        assert "cannot be reached" not in said, "it did not ask itself"


def test_log_follower_moves_to_another_server_when_standby_stops(
    cluster: Servers,
) -> None:
    leader = cluster.leader()
    standby = next(name for name in cluster.servers if name != leader)
    go_on = cluster.directory / "go on"
    script = f"echo one; until [ -e '{go_on}' ]; do sleep 0.1; done; echo two"
    with cluster.only(leader) as client:
        job = client.submit(["sh", "-c", script], gpus=1)
        cluster.until(lambda: job.state() == "running", "it runs")
    following = subprocess.Popen(
        [*PROGRAM, "logs", "-f", job.id],
        stdout=subprocess.PIPE,
        env=cluster.environment | {"TGPU_SERVER": cluster.address(standby, leader)},
    )
    assert following.stdout is not None
    assert following.stdout.readline() == b"one\n"
    # The server does not wait for the job, which may run for days.
    assert cluster.servers[standby].stop() == 0
    go_on.touch()
    assert following.communicate(timeout=60)[0] == b"two\n"
    log = cluster.servers[standby].log()
    # A client that leaves during a handshake makes the library log another line with this word.
    assert "Exception in ASGI application" not in log
    assert "Traceback" not in log
    cluster.start(standby)


@pytest.mark.slow
def test_second_server_with_same_name_is_rejected_and_first_continues(
    cluster: Servers,
) -> None:
    name = cluster.leader()
    second = cluster._process("server", "--state-dir", str(cluster.directory / "x"), log="x.log")
    second.environment = second.environment | {"GPU_SCHEDULER_SERVER_NAME": name}
    second.start("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    assert second.ended() == 7
    assert f"the server name '{name}' is already used" in second.log()
    assert cluster.address(name) in second.log()
    assert cluster.leadership(name)["role"] == "leader"
    wait_for_standbys(cluster, name, *(one for one in cluster.servers if one != name))
    cluster.servers[name].kill()
    cluster.start(name)  # at once, because it is the same server as before
    assert "waiting to see" not in cluster.servers[name].log()


class Submitter(threading.Thread):
    """A client that submits continuously and records what was acknowledged."""

    def __init__(self, address: str, notes: Path, pause_s: float = 0.2) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self.errors: list[str] = []
        self.tried = 0
        self._address = address
        self._notes = notes
        self._pause_s = pause_s
        self._over = threading.Event()

    def run(self) -> None:
        with Client(self._address) as client:
            while not self._over.is_set():
                number = self.tried = self.tried + 1
                line = f"echo $TGPU_JOB_ID {self.name}-{number} >> {self._notes}"
                try:
                    job = client.submit(["sh", "-c", line], gpus=1)
                    self.acknowledged.append(f"{job.id} {self.name}-{number}")
                except (NoServer, Unreadable, ClusterError, StoreError) as error:
                    self.errors.append(str(error))
                time.sleep(self._pause_s)

    def finish(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.slow
def test_rolling_restart_loses_no_job_and_no_acknowledged_request() -> None:
    with several_servers("a", "b", "c", agents=("n1", "n2")) as cluster:
        notes = cluster.directory / "notes"
        notes.touch()
        submitters = [Submitter(cluster.address(), notes) for _ in range(3)]
        with cluster.client() as client:
            long = client.submit(["sh", "-c", "sleep 8; exit 7"], gpus=1)
            for submitter in submitters:
                submitter.start()
            for name in ("a", "b", "c"):
                before = sum(len(submitter.acknowledged) for submitter in submitters)
                cluster.servers[name].stop()
                cluster.start(name)
                cluster.until(
                    lambda before=before: sum(len(p.acknowledged) for p in submitters) > before + 3,
                    "submissions go on",
                )
            for submitter in submitters:
                submitter.finish()
            acknowledged = [one for submitter in submitters for one in submitter.acknowledged]
            assert not [error for submitter in submitters for error in submitter.errors]
            assert client.wait(long.id, 60)["exit_code"] == 7
            living = "pending,scheduled,running,preempted"
            cluster.until(lambda: not client.page(state=living)["jobs"], "all ended")
            states = {job["id"]: job["state"] for job in client.list()}
            assert states.pop(long.id) == "failed"
            assert states == {one.split()[0]: "completed" for one in acknowledged}, "nothing twice"
            assert len(client.attempts(long.id)["attempts"]) == 1
        # By the records of the jobs, each ran once under the acknowledged id.
        ran = Counter(notes.read_text(encoding="ascii").splitlines())
        assert ran == Counter(acknowledged)
        assert len(acknowledged) > 10
