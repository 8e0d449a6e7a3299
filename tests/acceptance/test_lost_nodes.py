"""Lost nodes seen from outside: real servers, agents, launchers and jobs."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from tests.cluster import Cluster, a_cluster

QUICK = {
    "agent_heartbeat_interval_s": "0.2",
    "agent_max_retry_interval_s": "0.3",
    "nodes_suspect_after_s": "3",
    "nodes_lost_after_s": "4",
    "nodes_lease_s": "5",
    "nodes_lease_margin_s": "4",
}
NOTE = (
    'while :; do echo "$(cut -d" " -f1 /proc/uptime) $TGPU_ALLOCATION_ID" >> {notes}; '
    "sleep 0.05; done"
)
"""A job that records the time repeatedly."""


def two_nodes(**settings: str) -> AbstractContextManager[Cluster]:
    return a_cluster("n0", "n1", gpus="1xH100", **{**QUICK, **settings})


def witness(cluster: Cluster, *options: str) -> tuple[str, Path]:
    """Submit a job that records its runs, and wait until the server knows that it runs."""
    notes = cluster.directory / f"notes-{len(list(cluster.directory.glob('notes-*')))}"
    job = cluster.submit("--gpus", "1", *options, "--", "sh", "-c", NOTE.format(notes=notes))
    cluster.until(notes.exists, f"{job} runs")
    cluster.until(lambda: cluster.states(job) == {"running"}, f"{job} is known to run")
    return job, notes


def runs(notes: Path) -> dict[str, tuple[float, float]]:
    """Start and end of each attempt, in seconds since boot."""
    seen: dict[str, tuple[float, float]] = {}
    for line in notes.read_text("utf-8").splitlines():
        at, _, name = line.partition(" ")
        if name:
            first, _ = seen.get(name, (float(at), 0.0))
            seen[name] = (first, float(at))
    return seen


def is_there(cluster: Cluster, attempt: str) -> bool:
    """Whether a process of the attempt is alive."""
    marks = (f"TGPU_ALLOCATION_ID={attempt}\0".encode(), str(cluster.directory).encode())
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes()
                if all(mark in variables for mark in marks):
                    return True
    return False


def reason(cluster: Cluster, job: str) -> str:
    with cluster.client() as client:
        return str(client.get(job)["reason"])


@pytest.mark.slow
def test_leased_job_of_frozen_agent_runs_elsewhere_and_never_twice_at_a_time() -> None:
    with two_nodes() as cluster:
        job, notes = witness(cluster, "--requeue-on-node-loss")
        frozen = cluster.agents[cluster.node_of(job)]
        frozen.freeze()
        cluster.until(lambda: not is_there(cluster, f"{job}.1"), "the launcher keeps it alone")
        assert list(runs(notes)) == [f"{job}.1"], "it has ended before anybody was told"
        cluster.until(lambda: f"{job}.2" in runs(notes), "the second attempt")
        first, second = (runs(notes)[f"{job}.{number}"] for number in (1, 2))
        assert second[0] > first[1], "the server has waited longer than the launcher"
        frozen.thaw()
        cluster.wait_for_nodes()
        cluster.until(lambda: cluster.states(job) == {"running"}, "nothing has changed by that")
        with cluster.client() as client:
            attempts = client.attempts(job)["attempts"]
        assert [attempt["state"] for attempt in attempts] == ["preempted", "running"]
        assert "its lease has expired" in attempts[0]["detail"]
        assert runs(notes)[f"{job}.1"] == first


def test_job_without_lease_waits_for_its_node_and_continues() -> None:
    with two_nodes() as cluster:
        job, notes = witness(cluster)
        lost = cluster.node_of(job)
        cluster.agents[lost].freeze()
        cluster.wait_for_nodes(lost, state="lost")
        assert reason(cluster, job).startswith("on a lost node since ")
        assert f"{lost}[0] (on a lost node since " in cluster.tgpu("list")
        assert "only when that node is back, or known to be dead" in cluster.tgpu("explain", job)
        assert "on a lost node since" in cluster.tgpu("show", job)
        cluster.agents[lost].thaw()
        cluster.wait_for_nodes(lost)
        cluster.until(lambda: not reason(cluster, job), "all is as before")
        assert cluster.states(job) == {"running"}
        assert list(runs(notes)) == [f"{job}.1"]


def test_job_runs_elsewhere_after_admin_declares_node_dead() -> None:
    with two_nodes() as cluster:
        job, notes = witness(cluster)
        lost = cluster.node_of(job)
        told = cluster.tgpu("nodes", "confirm-dead", lost, "--yes", code=2)
        assert f"node '{lost}' is connected, so it is not dead" in told
        cluster.tgpu("nodes", "cordon", lost)
        cluster.agents[lost].freeze()
        cluster.wait_for_nodes(lost, state="lost")
        listed = cluster.tgpu("nodes", "--tabs")
        assert f"{lost}\tlost+cordoned\t" in listed
        assert listed.splitlines()[0].endswith("\tSILENT")
        told = cluster.tgpu("logs", job, code=1)
        assert f"attempt 1 is on node '{lost}', which is lost (no heartbeat since" in told
        assert "add --yes" in cluster.tgpu("nodes", "confirm-dead", lost, code=2)
        assert f"{lost} confirmed dead" in cluster.tgpu("nodes", "confirm-dead", lost, "--yes")
        cluster.until(lambda: f"{job}.2" in runs(notes), "the second attempt")
        assert "confirm_dead" in cluster.tgpu("audit")
        told = cluster.tgpu("logs", job, "--attempt", 1, code=1)
        assert f"attempt 1 is on node '{lost}', which is dead" in told
        cluster.tgpu("nodes", "uncordon", lost)
        # The node was not dead: what it still runs is stopped when it returns.
        cluster.agents[lost].thaw()
        cluster.wait_for_nodes(lost)
        cluster.until(
            lambda: cluster.json("nodes", "show", lost)["state"] == "online", "it is back"
        )

        def only_the_second_writes() -> bool:
            before = Counter(notes.read_text("utf-8").split()[1::2])
            cluster.until(
                lambda: (
                    Counter(notes.read_text("utf-8").split()[1::2])[f"{job}.2"]
                    > before[f"{job}.2"] + 3
                ),
                "the second attempt goes on",
            )
            return Counter(notes.read_text("utf-8").split()[1::2])[f"{job}.1"] == before[f"{job}.1"]

        cluster.until(only_the_second_writes, "the first attempt is stopped")


def test_job_runs_elsewhere_after_fencing_command_confirms_node_is_dead(tmp_path: Path) -> None:
    flag, script = tmp_path / "fenced", tmp_path / "fence"
    script.write_text(f"#!/bin/sh\necho $TGPU_NODE gone\ntest -e {flag}\n", "utf-8")
    script.chmod(0o755)
    with two_nodes(nodes_fencing_command=str(script), nodes_fencing_retry_s="0.2") as cluster:
        job, notes = witness(cluster)
        lost = cluster.node_of(job)
        cluster.agents[lost].freeze()

        def fencing() -> list[dict[str, object]]:
            with cluster.client() as client:
                events = client.call("GET", "/api/v1/events?limit=1000")["events"]
            told = [event["data"] for event in events if event["kind"] == "node_fencing"]
            return [data for data in told if data["node"] == lost]

        cluster.until(lambda: len(fencing()) >= 2, "it is asked again when it fails")
        assert fencing()[0] == {"node": lost, "run": 1, "exit_code": 1, "output": f"{lost} gone"}
        assert cluster.states(job) == {"running"}
        assert list(runs(notes)) == [f"{job}.1"]
        flag.touch()
        cluster.until(lambda: f"{job}.2" in runs(notes), "the second attempt")
        assert fencing()[-1]["exit_code"] == 0
        cluster.agents[lost].kill()


@pytest.mark.slow
def test_server_outage_stops_only_leased_jobs() -> None:
    with two_nodes() as cluster:
        plain, notes = witness(cluster)
        leased, leased_notes = witness(cluster, "--requeue-on-node-loss")
        cluster.server.kill()
        cluster.until(lambda: not is_there(cluster, f"{leased}.1"), "the end of the lease")
        length = notes.stat().st_size
        cluster.until(lambda: notes.stat().st_size > length, "the other one runs on")
        cluster.start_server()
        cluster.wait_for_nodes()
        cluster.until(lambda: f"{leased}.2" in runs(leased_notes), "it runs again")
        assert list(runs(notes)) == [f"{plain}.1"]
        assert cluster.states(plain) == {"running"}
