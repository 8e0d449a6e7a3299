"""One server and several agents as separate processes over TCP: jobs, outages, logs, names."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.cluster import Cluster, a_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with eight declared GPUs each."""
    with a_cluster("n1", "n2", jobs_grace_s="1") as running:
        yield running


def test_two_agents_join_over_tcp_and_both_run_jobs(cluster: Cluster) -> None:
    gate = cluster.directory / "both"
    words = ("--gpus", "8", "--", "sh", "-c", f"echo here; until [ -e {gate} ]; do sleep 0.1; done")
    jobs = [cluster.submit(*words), cluster.submit(*words)]
    cluster.until(lambda: cluster.states(*jobs) == {"running"}, "both jobs run")
    gate.touch()
    cluster.tgpu("wait", *jobs)
    assert {cluster.node_of(job) for job in jobs} == {"n1", "n2"}
    assert [cluster.tgpu("logs", job) for job in jobs] == ["here\n", "here\n"]


def test_drain_is_shown_explained_and_undone(cluster: Cluster) -> None:
    gate = cluster.directory / "drained"
    waits = f"until [ -e {gate} ]; do sleep 0.1; done"
    job = cluster.submit("--gpus", "8", "--", "sh", "-c", waits)
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs")
    node = cluster.node_of(job)
    other = "n2" if node == "n1" else "n1"
    told = cluster.tgpu("nodes", "drain", node, "--reason", "new driver", "--deadline", "1h")
    assert told == f"{node} draining; still running: {job}; stopped in 60 min\n"
    cluster.tgpu("nodes", "cordon", other)
    assert "cordoned" in cluster.tgpu("nodes", "show", other)
    late = cluster.submit("--", "true")
    assert "1 x being drained, 1 x cordoned" in cluster.tgpu("explain", late)
    assert "new driver" in cluster.tgpu("nodes", "show", node)
    gate.touch()
    assert f"{node} is drained" in cluster.tgpu("nodes", "drain", node, "--wait")
    assert {one["state"] for one in cluster.nodes()} == {"drained", "cordoned"}
    cluster.tgpu("nodes", "uncordon", "n1", "n2")
    cluster.tgpu("wait", late)


def test_drain_with_requeue_moves_job_to_another_node(cluster: Cluster) -> None:
    job = cluster.submit("--", "sh", "-c", "echo began on $TGPU_ATTEMPT; exec sleep 600")
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs")
    node = cluster.node_of(job)
    cluster.tgpu("nodes", "drain", node, "--requeue", "--wait")
    cluster.until(lambda: cluster.node_of(job) != node, "it moves")
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs again")
    # The job runs before its first report.
    cluster.until(lambda: cluster.tgpu("logs", job) == "began on 2\n", "it has begun again")
    cluster.tgpu("nodes", "uncordon", node)
    cluster.tgpu("cancel", job)
    cluster.tgpu("wait", job, code=143)
    assert cluster.tgpu("logs", job) == "began on 2\n"


def test_job_is_placed_by_node_labels(cluster: Cluster) -> None:
    assert cluster.tgpu("nodes", "label", "n2", "disk=ssd") == "n2: disk=ssd\n"
    job = cluster.submit("--label", "disk=ssd", "--", "true")
    cluster.tgpu("wait", job)
    assert cluster.node_of(job) == "n2"
    assert cluster.tgpu("nodes", "label", "n2", "disk-") == "n2: no labels\n"


def test_second_agent_with_same_name_is_rejected_with_reason(cluster: Cluster) -> None:
    """The server rejects it with a token, and also with the key of the first agent."""
    rival = cluster.agent("n1", "--work-dir", str(cluster.directory / "rival"))
    rival.log_file = cluster.directory / "rival.log"
    rival.start()
    assert rival.ended() != 0
    assert "node 'n1' already exists" in rival.log()
    stolen = next((cluster.directory / "n1").rglob("identity.json"))
    shutil.copy(stolen, cluster.directory / "rival" / stolen.relative_to(cluster.directory / "n1"))
    rival.start()
    try:
        cluster.until(lambda: "is already connected" in rival.log(), "it is refused")
    finally:
        rival.stop()
    cluster.tgpu("wait", cluster.submit("--gpus", "8", "--", "true"))


@pytest.mark.slow
def test_agents_run_jobs_during_server_outage_and_report_afterwards(
    cluster: Cluster,
) -> None:
    """Jobs complete and fail while the server is down for more than 10 s."""
    gate = cluster.directory / "away"
    script = f"until [ -e {gate} ]; do sleep 0.1; done; echo told; exit $0"
    jobs = [cluster.submit("--gpus", "4", "--", "sh", "-c", script, code) for code in "0123"]
    cluster.until(lambda: cluster.states(*jobs) == {"running"}, "all run")
    nodes = {job: cluster.node_of(job) for job in jobs}
    cluster.server.kill()
    gate.touch()
    time.sleep(11)
    back = datetime.now(UTC)
    cluster.start_server()
    with cluster.client() as client:
        ends = [client.wait(job, timeout=60) for job in jobs]
    assert [end["exit_code"] for end in ends] == [0, 1, 2, 3]
    # They are charged until their end, not until the report of it.
    assert max(datetime.fromisoformat(end["ended_at"]) for end in ends) < back
    assert {job: cluster.node_of(job) for job in jobs} == nodes
    assert [cluster.tgpu("logs", job) for job in jobs] == ["told\n"] * 4


def test_log_on_unreachable_node_returns_clear_error(cluster: Cluster) -> None:
    job = cluster.submit("--", "echo", "kept")
    cluster.tgpu("wait", job)
    node = cluster.node_of(job)
    before = cluster.agents[node].connections()
    said = len(cluster.server.log())
    assert cluster.agents[node].stop() == 0
    cluster.until(lambda: "disconnected" in cluster.server.log()[said:], "the server has noticed")
    told = cluster.tgpu("logs", job, code=1)
    # For some seconds the node is only disconnected; then it has missed its heartbeats.
    at_once = f"node '{node}' is not connected, so its logs cannot be read"
    later = f"is on node '{node}', which is suspect (no heartbeat since"
    assert at_once in told or later in told
    cluster.agents[node].start()
    cluster.until(lambda: cluster.agents[node].connections() > before, "it is back")
    cluster.wait_for_nodes(node)
    assert cluster.tgpu("logs", job) == "kept\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--server", "host"), "write HOST:PORT"),
        (("--server", "host:99999"), "write HOST:PORT"),
        ((), "no server given"),
        (("--server", "a:1", "--name", "a/b"), "use letters, digits"),
        (("--server", "a:1", "--labels", "x"), "write NAME=VALUE"),
        (("--server", "a:1", "--simulate", "many"), "expected COUNTxMODEL"),
        (("--server", "a:1", "--cpus", "none"), "agent.cpu_cores"),
    ],
)
def test_agent_with_unusable_setup_fails_at_once_with_reason(
    cluster: Cluster, words: tuple[str, ...], says: str
) -> None:
    assert says in cluster.tgpu("agent", *words, code=2)


def test_agent_notices_added_and_lost_gpus_without_restart(cluster: Cluster) -> None:
    """The agent rescans at once on SIGHUP, as `systemctl reload` sends it."""
    declared = cluster.directory / "n2" / "agent" / "readings.json"
    gpus = {"n1": 8, "n2": 9}

    def has(count: int) -> bool:
        return {node["id"]: node["gpus"] for node in cluster.nodes()} == gpus | {"n2": count}

    declared.write_text('{"gpus": "9xH100"}', encoding="utf-8")
    os.kill(cluster.agents["n2"].pid, signal.SIGHUP)
    cluster.until(lambda: has(9), "one GPU more")
    job = cluster.submit("--gpus", "9", "--", "sh", "-c", "exec sleep 600")
    cluster.until(lambda: cluster.states(job) == {"running"}, "it runs on all of them")
    declared.write_text('{"gpus": "8xH100"}', encoding="utf-8")
    os.kill(cluster.agents["n2"].pid, signal.SIGHUP)
    cluster.until(
        lambda: "GPU 8 of n2 cannot be trusted any more" in cluster.tgpu("logs", job), "it is told"
    )
    cluster.tgpu("cancel", job)
    cluster.until(lambda: has(8), "the lost one is forgotten when the job is over")
    declared.unlink()


def test_job_runs_elsewhere_when_agent_of_its_node_has_just_stopped() -> None:
    with a_cluster("n1", "n2", gpus="4xH100") as cluster:
        cluster.tgpu("nodes", "cordon", "n1")
        cluster.agents["n2"].stop()
        # Either placed on the node that has just left, or waiting for the one that is cordoned.
        job = cluster.submit("--gpus", 4, "--", "true")
        cluster.tgpu("nodes", "uncordon", "n1")
        cluster.until(lambda: cluster.states(job) == {"completed"}, "it ran elsewhere")
        assert cluster.node_of(job) == "n1"
        assert cluster.states(job) == {"completed"}
