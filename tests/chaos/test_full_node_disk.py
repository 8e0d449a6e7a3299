"""The disk of a node fills up for a while, so that its agent and launcher cannot write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.test_full_disk import fill_directory
from tests.cluster import Cluster, a_cluster

pytestmark = pytest.mark.slow

SIZE_MB = 16
MANY = 150


@contextmanager
def a_small_disk(place: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted by root")
    place.mkdir(mode=0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tgpu", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def wait_for(cluster: Cluster, job: str, *states: str) -> None:
    cluster.until(lambda: cluster.states(job) <= set(states), f"{job} is {' or '.join(states)}")


def node(cluster: Cluster, name: str) -> dict[str, Any]:
    (found,) = (node for node in cluster.nodes() if node["id"] == name)
    return found


def test_node_with_full_disk_keeps_jobs_and_new_ones_wait() -> None:
    with a_cluster() as cluster, a_small_disk(cluster.directory / "n1"):
        cluster.start_agent("n1")
        cluster.wait_for_nodes()
        told = cluster.directory / "end"
        line = f"while ! test -e {told}; do sleep 0.05; done; exit 42"
        running = cluster.submit("--gpus", 1, "--", "sh", "-c", line)
        wait_for(cluster, running, "running")
        ballast = fill_directory(cluster.directory / "n1")
        with cluster.client() as client:
            # The launcher's journal has some preallocated room, so the first of them may still run.
            many = client.submit_many([{"command": ["true"], "gpu_count": 1}] * MANY)
            cluster.until(lambda: node(cluster, "n1")["closed"] is not None, "it is set aside")
            assert "is full" in node(cluster, "n1")["closed"]["reason"]
            states = {client.get(one.id)["state"] for one in many}
            assert "pending" in states
            assert states <= {"pending", "scheduled", "running", "completed"}, states
            last = many[-1].id
        cluster.until(lambda: "set aside" in cluster.tgpu("explain", last), "it says why it waits")
        assert cluster.states(running) == {"running"}
        told.touch()
        wait_for(cluster, running, "failed")
        with cluster.client() as client:
            assert client.get(running)["exit_code"] == 42, "its end is learnt on a full disk"
        ballast.unlink()
        cluster.wait_for_nodes("n1", state="online")
        with cluster.client() as client:
            assert {client.wait(one.id, 60)["state"] for one in many} == {"completed"}


def test_node_with_full_disk_does_not_consume_jobs_that_others_could_run() -> None:
    with a_cluster() as cluster, a_small_disk(cluster.directory / "n1"):
        cluster.start_agent("n1")
        cluster.start_agent("n2")
        cluster.wait_for_nodes()
        fill_directory(cluster.directory / "n1")
        with cluster.client() as client:
            many = client.submit_many([{"command": ["true"], "gpu_count": 1}] * MANY)
            assert {one.wait(60)["state"] for one in many} == {"completed"}
        # Its agent checks the disk now and then, even if every start has found room.
        cluster.until(lambda: node(cluster, "n1")["closed"] is not None, "it is set aside")
        assert node(cluster, "n1")["closed"]["is_fault"]
