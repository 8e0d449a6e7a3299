"""A real cluster whose prolog or epilog fails: what users and admins see, and how to resume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, a_cluster

HOOK = """#!/bin/sh
! rm {place}/{name}.fails 2>/dev/null || {{ echo "no disk"; exit 3; }}
! rm {place}/{name}.hangs 2>/dev/null || sleep 1000
"""
HOOK_S = 5
"""Longer than a hook that does not hang takes, even on a busy machine."""


class Site:
    """Two nodes with one GPU each; a hook fails a given number of times on any node."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster = cluster
        self._place = place

    def break_hook(self, name: str, how: str = "fails") -> None:
        (self._place / f"{name}.{how}").touch()

    def run(self, *options: str) -> dict[str, Any]:
        """Run a job to its end; returns it with its attempts."""
        job = self.cluster.submit("--gpus", 1, *options, "--", "true")
        self.cluster.until(lambda: self.cluster.states(job) & {"completed", "failed"}, "its end")
        with self.cluster.client() as client:
            return dict(client.get(job)) | {"attempts": client.attempts(job)["attempts"]}

    def drained_nodes(self) -> dict[str, str]:
        """The drained nodes and their reasons."""
        closed = {node["id"]: node["closed"] for node in self.cluster.nodes()}
        return {name: told["reason"] for name, told in closed.items() if told and told["is_fault"]}

    def resume_node(self) -> None:
        for node in self.drained_nodes():
            self.cluster.tgpu("nodes", "uncordon", node)
        self.cluster.wait_for_nodes()


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("hooks")
    for name in ("prolog", "epilog"):
        hook = place / name
        hook.write_text(HOOK.format(place=place, name=name))
        hook.chmod(0o755)
    settings = {f"jobs_{name}": str(place / name) for name in ("prolog", "epilog")}
    with a_cluster(
        "n0", "n1", gpus="1xH100", jobs_hook_timeout_s=str(HOOK_S), **settings
    ) as cluster:
        yield Site(cluster, place)


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    yield whole_site
    whole_site.resume_node()


def test_job_with_failed_prolog_runs_on_another_node_and_reason_is_visible(site: Site) -> None:
    site.break_hook("prolog")
    job = site.run()
    first, second = job["attempts"]
    node, other = (attempt["allocation"][0]["node"] for attempt in (first, second))
    assert (job["state"], job["reason"]) == ("completed", "")
    assert first["detail"].startswith(f"node {node}: the prolog ")
    assert first["detail"].endswith("failed: exit code 3: no disk")
    assert node != other
    why = f"the prolog of job {job['id'][4:]} failed: exit code 3: no disk"
    assert site.drained_nodes() == {node: why}
    cluster = site.cluster
    shown = [line.split("\t") for line in cluster.tgpu("nodes", "--tabs").splitlines()]
    assert {(row[0], row[1], row[-1]) for row in shown[1:]} == {
        (node, "drained", why),
        (other, "online", "-"),
    }
    assert f"drained (by gpu-scheduler: {why})" in cluster.tgpu("nodes", "show", node)
    assert f"GPU {node}:0: its node is set aside: {why}" in cluster.tgpu("gpus")
    health = cluster.json("health")
    (finding,) = [one for one in health["reasons"] if node in one["detail"]]
    assert "no disk" not in str(finding)
    assert f"tgpu nodes uncordon {node}" in finding["remedy"]


def test_drained_node_stays_drained_after_server_kill_until_resumed(
    site: Site,
) -> None:
    site.break_hook("prolog")
    (node,) = {attempt["allocation"][0]["node"] for attempt in site.run()["attempts"][:1]}
    site.cluster.server.kill()
    site.cluster.start_server()
    site.cluster.wait_for_nodes(node, state="drained")
    pinned = site.cluster.submit("--gpus", 1, "-w", node, "--", "true")
    told = site.cluster.tgpu("explain", pinned)
    assert "set aside as a prolog or epilog failed there" in told
    site.resume_node()
    site.cluster.until(lambda: site.cluster.states(pinned) == {"completed"}, "it runs there")


@pytest.mark.slow
def test_hanging_prolog_is_stopped_and_job_runs_elsewhere(site: Site) -> None:
    site.break_hook("prolog", "hangs")
    job = site.run()
    assert job["state"] == "completed"
    assert job["attempts"][0]["detail"].endswith(f"failed: it took longer than {HOOK_S} s")
    assert len(site.drained_nodes()) == 1


def test_failed_epilog_keeps_job_result_and_drains_node(
    site: Site,
) -> None:
    site.break_hook("epilog")
    job = site.run()
    assert (job["state"], job["exit_code"], len(job["attempts"])) == ("completed", 0, 1)
    assert job["reason"].endswith("failed: exit code 3: no disk")
    node = job["attempts"][0]["allocation"][0]["node"]
    assert site.drained_nodes() == {
        node: f"the epilog of job {job['id'][4:]} failed: exit code 3: no disk"
    }
