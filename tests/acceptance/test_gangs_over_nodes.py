"""Gangs over real agents: prepared on all nodes and committed, or no member runs.

A prolog lets a test hold or reject single members, by files named after their numbers.
"""

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, a_cluster

PROGRAM = Path(__file__).parents[1] / "examples" / "all_reduce.py"
PROLOG = """#!/bin/sh
touch {place}/came.$TGPU_MEMBER
while [ -e {place}/hold.$TGPU_MEMBER ]; do sleep 0.02; done
! rm {place}/refuse.$TGPU_MEMBER 2>/dev/null || {{ echo "no licence here"; exit 1; }}
"""
NODES = ("n0", "n1", "n2", "n3")
PATIENCE = "GPU_SCHEDULER_GANGS_PREPARE_TIMEOUT_S"
LONG, SHORT = "60", "10"
"""Longer than the three seconds after which a node counts as silent."""
SETTINGS = {
    "gangs_prepare_timeout_s": LONG,
    "nodes_suspect_after_s": "3",
    "nodes_lost_after_s": "30",
    "agent_heartbeat_interval_s": "0.5",
    "jobs_assignment_retry_wait_s": "0.1",
    "agent_retry_interval_s": "0.05",
}


class GangCluster:
    """A cluster of four nodes with one GPU each, and its events."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster = cluster
        self.place = place

    def prepare_timeout(self, seconds: str) -> None:
        """Set the prepare timeout of the server, restarting it if necessary."""
        cluster = self.cluster
        process = cluster.server.process
        is_up = process is not None and process.poll() is None
        if is_up and cluster.environment[PATIENCE] == seconds:
            return
        cluster.environment[PATIENCE] = seconds
        if is_up:
            cluster.server.kill()
        cluster.start_server()

    def hold(self, member: int) -> None:
        """Hold these members in their prolog until they are released."""
        (self.place / f"hold.{member}").touch()

    def release_members(self, member: int) -> None:
        (self.place / f"hold.{member}").unlink()

    def wait_for_prolog(self, *members: int) -> None:
        """Wait until the prologs of these members run."""
        self.cluster.until(
            lambda: all((self.place / f"came.{member}").exists() for member in members),
            f"members {members} are being prepared",
        )

    def submit(self, *options: object, members: int = 3, **variables: str) -> str:
        """A gang whose members record that they ran, and then meet."""
        words = [f"{name}={value}" for name, value in variables.items()]
        program = " ".join(map(shlex.quote, (sys.executable, str(PROGRAM))))
        script = f"touch {self.place}/ran.$TGPU_ALLOCATION_ID.$TGPU_MEMBER; exec {program}"
        command = ("env", *words, "sh", "-c", script)
        return self.cluster.submit("-N", members, "--gpus", 1, *options, "--", *command)

    def ran(self, job: str) -> list[str]:
        """Attempt and member of everything that ran, as in `1.0`."""
        found = self.place.glob(f"ran.{job}.*")
        return sorted(path.name.removeprefix(f"ran.{job}.") for path in found)

    def members_that_met(self, job: str) -> int:
        """The number of members of the last attempt that printed the reduced sum."""
        return self.cluster.tgpu("logs", job, "--all-members").count("] sum 111 ")

    def state(self, job: str) -> str:
        return self.cluster.states(job).pop()

    def until(self, job: str, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states; returns the job."""
        self.cluster.until(lambda: self.state(job) in states, f"{job} is {states}")
        with self.cluster.client() as client:
            return dict(client.get(job))

    def events(self, job: str) -> list[str]:
        with self.cluster.client() as client:
            page = client.call("GET", "/api/v1/events?after=0&limit=1000")
        return [event["kind"] for event in page["events"] if event["job_id"] == job]

    def attempts(self, job: str) -> list[dict[str, Any]]:
        with self.cluster.client() as client:
            return list(client.attempts(job)["attempts"])

    def wait_until_prepared(self, job: str, node: str) -> None:
        """Wait until the launcher of a node reports its member as prepared."""
        self.cluster.until(lambda: is_prepared(self.cluster, node, job), f"{node} is prepared")

    def nodes(self, job: str) -> dict[int, str]:
        """The nodes of the members of the last attempt."""
        return {p["member"]: p["node"] for p in self.attempts(job)[-1]["allocation"]}

    def whole(self) -> None:
        """Restart what a test has stopped, and release all members."""
        for path in self.place.iterdir():
            if path.name != "prolog":
                path.unlink()
        self.prepare_timeout(self.cluster.environment[PATIENCE])
        cluster = self.cluster
        for agent in cluster.agents.values():
            agent.thaw() if agent.process and agent.process.poll() is None else agent.start()
        cluster.wait_for_nodes()


def asked(cluster: Cluster, node: str, what: str, lines: int = 1) -> dict[str, Any]:
    """The answer of the launcher of a node; with several lines, the last one."""
    (path,) = (cluster.directory / node).rglob("launcher.sock")
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.settimeout(5)
        launcher.connect(str(path))
        launcher.sendall(json.dumps({"n": 1, "do": what}).encode() + b"\n")
        with launcher.makefile("rb") as answers:
            said = [json.loads(answers.readline()) for _ in range(lines)]
    return dict(said[-1])


def is_prepared(cluster: Cluster, node: str, job: str) -> bool:
    """Whether a launcher reports a member of the first attempt as prepared."""
    held = asked(cluster, node, "held")["held"]
    if not any(item["allocation_id"] == f"{job}.1" for item in held):
        return False
    report = asked(cluster, node, "watch", lines=2)
    return (report["report"], report["allocation_id"]) == ("prepared", f"{job}.1")


def processes_of(cluster: Cluster, job: str, member: int | None = None) -> list[int]:
    """Processes of the members of a job in this cluster, found by their environment."""
    found = []
    wanted = {f"TGPU_JOB_ID={job}".encode()}
    if member is not None:
        wanted.add(f"TGPU_MEMBER={member}".encode())
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                told = (entry / "environ").read_bytes()
                if os.fsencode(cluster.directory) in told and wanted <= set(told.split(b"\0")):
                    found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def whole_gang_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangCluster]:
    place = tmp_path_factory.mktemp("stage")
    prolog = place / "prolog"
    prolog.write_text(PROLOG.format(place=place))
    prolog.chmod(0o755)
    with a_cluster(jobs_prolog=str(prolog), **SETTINGS) as cluster:
        for number, name in enumerate(NODES):
            cluster.start_agent(name, "--address", f"127.0.0.{10 + number}", gpus="1xH100")
        cluster.wait_for_nodes()
        yield GangCluster(cluster, place)


@pytest.fixture
def gang_cluster(whole_gang_cluster: GangCluster) -> GangCluster:
    whole_gang_cluster.whole()
    return whole_gang_cluster


def test_gang_members_on_several_nodes_run_all_reduce(gang_cluster: GangCluster) -> None:
    job = gang_cluster.submit()
    shown = gang_cluster.until(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    placed = gang_cluster.nodes(job)
    hosts = [f"127.0.0.{10 + NODES.index(placed[member])}" for member in range(3)]
    for member in range(3):
        words = gang_cluster.cluster.tgpu("logs", job, "--member", member).split(" ", 2)
        assert words[:2] == ["sum", "111"]
        assert words[2].split() == [
            *(f"RANK={member}", "WORLD_SIZE=3", "LOCAL_RANK=0", f"NODE_RANK={member}"),
            *("NNODES=3", "PET_NPROC_PER_NODE=1"),
            *(word for host in hosts for word in (host, "slots=1")),
        ]
    together = gang_cluster.cluster.tgpu("logs", job, "--all-members").splitlines()
    assert [line[:11] for line in together] == [f"[{rank}] sum 111" for rank in range(3)]
    assert gang_cluster.events(job) == [
        "submitted",
        "scheduled",
        "prepared",
        "running",
        "completed",
    ]


def test_no_gang_member_runs_before_last_node_is_prepared(gang_cluster: GangCluster) -> None:
    gang_cluster.hold(2)
    job = gang_cluster.submit()
    gang_cluster.wait_for_prolog(0, 1, 2)
    assert gang_cluster.state(job) == "scheduled"
    assert "its 3 members are being prepared on " in gang_cluster.cluster.tgpu("explain", job)
    assert gang_cluster.ran(job) == []
    gang_cluster.release_members(2)
    gang_cluster.until(job, "completed")
    assert gang_cluster.ran(job) == ["1.0", "1.1", "1.2"]


def test_gang_fails_with_node_and_cause_when_member_cannot_be_prepared(
    gang_cluster: GangCluster,
) -> None:
    job, *_ = gang_cluster.submit("--chdir", str(gang_cluster.place / "nowhere")).split()
    shown = gang_cluster.until(job, "failed")
    assert re.match(r"could not be started: member \d on n\d: .*nowhere", shown["reason"])
    assert gang_cluster.ran(job) == []


def test_gang_with_failed_prolog_runs_elsewhere_and_node_is_drained(
    gang_cluster: GangCluster,
) -> None:
    (gang_cluster.place / "refuse.1").touch()
    job = gang_cluster.submit()
    shown = gang_cluster.until(job, "completed", "failed")
    assert shown["state"] == "completed", shown
    first, second = gang_cluster.attempts(job)
    node = {p["member"]: p["node"] for p in first["allocation"]}[1]
    assert first["detail"].startswith(f"member 1 on {node}: the prolog ")
    assert first["detail"].endswith("exit code 1: no licence here")
    assert node not in {p["node"] for p in second["allocation"]}
    assert gang_cluster.ran(job) == ["2.0", "2.1", "2.2"]
    aside = {n["id"]: n["closed"]["reason"] for n in gang_cluster.cluster.nodes() if n["closed"]}
    assert aside == {node: f"the prolog of job {job[4:]} failed: exit code 1: no licence here"}
    gang_cluster.cluster.tgpu("nodes", "uncordon", node)
    gang_cluster.cluster.wait_for_nodes()


def test_agent_reconnecting_during_prepare_does_not_report_gang_as_running(
    gang_cluster: GangCluster,
) -> None:
    """Agents are killed and restarted on every node; the launchers keep their gates closed."""
    gang_cluster.hold(1)
    job = gang_cluster.submit()
    gang_cluster.wait_for_prolog(0, 1, 2)
    for member in (0, 2):
        gang_cluster.wait_until_prepared(job, gang_cluster.nodes(job)[member])
    agents = gang_cluster.cluster.agents.values()
    before = {agent: agent.log().count('"connected"') for agent in agents}
    for agent in agents:
        agent.kill()
        agent.start()
    gang_cluster.cluster.until(
        lambda: all(agent.log().count('"connected"') > before[agent] for agent in agents),
        "all agents are back",
    )
    assert gang_cluster.state(job) == "scheduled"
    assert gang_cluster.ran(job) == []
    gang_cluster.release_members(1)
    gang_cluster.until(job, "completed")
    assert gang_cluster.ran(job) == ["1.0", "1.1", "1.2"]
    assert gang_cluster.events(job) == [
        "submitted",
        "scheduled",
        "prepared",
        "running",
        "completed",
    ]


def test_gang_continues_after_server_is_killed_between_prepare_and_commit(
    gang_cluster: GangCluster,
) -> None:
    gang_cluster.hold(0)
    job = gang_cluster.submit()
    gang_cluster.wait_for_prolog(0, 1, 2)
    nodes = gang_cluster.nodes(job)
    gang_cluster.cluster.server.kill()
    gang_cluster.release_members(0)
    for node in nodes.values():
        gang_cluster.wait_until_prepared(job, node)
    assert gang_cluster.ran(job) == []
    gang_cluster.cluster.start_server()
    gang_cluster.until(job, "completed")
    assert gang_cluster.ran(job) == ["1.0", "1.1", "1.2"]


def test_whole_gang_restarts_when_one_member_dies(gang_cluster: GangCluster) -> None:
    job = gang_cluster.submit("--retries", 1, STAY="1")
    gang_cluster.until(job, "running")
    # A member that dies before the rendezvous ends the others, which may have recorded nothing.
    gang_cluster.cluster.until(
        lambda: gang_cluster.members_that_met(job) == 3, "all members have met"
    )
    os.kill(processes_of(gang_cluster.cluster, job, 1)[0], 9)
    gang_cluster.cluster.until(lambda: len(gang_cluster.attempts(job)) == 2, "it is tried again")
    first = gang_cluster.attempts(job)[0]
    assert first["detail"].startswith("member 1 on ")
    gang_cluster.cluster.until(lambda: len(gang_cluster.ran(job)) == 6, "all members run again")
    gang_cluster.until(job, "running")
    gang_cluster.cluster.tgpu("cancel", job)
    gang_cluster.until(job, "cancelled")
    assert processes_of(gang_cluster.cluster, job) == []


def test_gang_cancelled_during_prepare_never_runs(gang_cluster: GangCluster) -> None:
    gang_cluster.hold(2)
    job = gang_cluster.submit()
    gang_cluster.wait_for_prolog(0, 1, 2)
    gang_cluster.cluster.tgpu("cancel", job)
    gang_cluster.release_members(2)
    gang_cluster.until(job, "cancelled")
    assert gang_cluster.ran(job) == []


@pytest.mark.slow
def test_agent_killed_during_prepare_costs_one_attempt_that_never_ran(
    gang_cluster: GangCluster,
) -> None:
    gang_cluster.prepare_timeout(SHORT)
    gang_cluster.cluster.wait_for_nodes()
    gang_cluster.hold(2)
    job = gang_cluster.submit()
    gang_cluster.wait_for_prolog(2)
    node = gang_cluster.nodes(job)[2]
    gang_cluster.cluster.agents[node].kill()
    gang_cluster.cluster.until(
        lambda: len(gang_cluster.attempts(job)) > 1, "the gang is tried again"
    )
    gang_cluster.release_members(2)  # its launcher continues to prepare what will not be committed
    gang_cluster.until(job, "completed")
    last = len(gang_cluster.attempts(job))
    assert gang_cluster.ran(job) == [f"{last}.{member}" for member in range(3)]
    first = gang_cluster.attempts(job)[0]
    late = f"member 2 on {node} was not prepared within {SHORT} s, and its node does not answer"
    assert late in first["detail"]
    gang_cluster.cluster.agents[node].start()
    gang_cluster.cluster.wait_for_nodes(node)
    gang_cluster.cluster.until(
        lambda: not asked(gang_cluster.cluster, node, "held")["held"],
        "what was prepared is forgotten",
    )
    assert gang_cluster.ran(job) == [f"{last}.{member}" for member in range(3)]


@pytest.mark.slow
def test_frozen_agent_costs_one_attempt_and_gang_is_retried_until_it_thaws(
    gang_cluster: GangCluster,
) -> None:
    """The gang needs all four nodes, so it can only wait."""
    gang_cluster.prepare_timeout(SHORT)
    gang_cluster.cluster.wait_for_nodes()
    job = gang_cluster.submit("--hold", members=4)
    with gang_cluster.cluster.client() as client:
        # At once: a node known to be silent would get no jobs at all.
        gang_cluster.cluster.agents["n1"].freeze()
        client.release(job)
    late = re.compile(rf"member \d on n1 was not prepared within {SHORT} s")
    gang_cluster.cluster.until(
        lambda: any(late.search(one["detail"] or "") for one in gang_cluster.attempts(job)[:1]),
        "the first attempt is given up",
    )
    assert gang_cluster.ran(job) == []
    gang_cluster.cluster.agents["n1"].thaw()
    gang_cluster.until(job, "completed")
    last = len(gang_cluster.attempts(job))
    assert gang_cluster.ran(job) == [f"{last}.{member}" for member in range(4)]
