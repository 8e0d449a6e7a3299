"""A server and agents as processes of their own, over TCP: jobs, outages, logs, names."""

from collections.abc import Iterator

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
