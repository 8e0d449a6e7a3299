"""The disk of a node is full for a while: its agent and launcher have nowhere to write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.test_full_disk import fill_directory
from tests.cluster import Cluster, a_cluster

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


def test_on_a_node_with_a_full_disk_jobs_go_on_new_ones_say_why_not_and_all_is_well_after() -> None:
    with a_cluster() as cluster, a_small_disk(cluster.directory / "n1"):
        cluster.start_agent("n1")
        cluster.wait_for_nodes()
        told = cluster.directory / "end"
        line = f"while ! test -e {told}; do sleep 0.05; done; exit 42"
        running = cluster.submit("--gpus", 1, "--", "sh", "-c", line)
        wait_for(cluster, running, "running")
        ballast = fill_directory(cluster.directory / "n1")
        # There is some room ahead in the launcher's journal: not the first of them fails.
        with cluster.client() as client:
            many = client.submit_many([{"command": ["true"], "gpu_count": 1}] * MANY)
            ended = [one.wait(60) for one in many]
        assert {job["state"] for job in ended} == {"completed", "failed"}
        for job in ended:
            assert job["state"] == "completed" or "No space left" in job["reason"], job["reason"]
        assert cluster.states(running) == {"running"}
        told.touch()
        wait_for(cluster, running, "failed")
        with cluster.client() as client:
            assert client.get(running)["exit_code"] == 42, "its end is learnt on a full disk"
        ballast.unlink()
        after = cluster.submit("--gpus", 8, "--", "true")
        wait_for(cluster, after, "completed")
