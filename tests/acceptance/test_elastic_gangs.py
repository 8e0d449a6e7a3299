"""Elastic gangs that lose a member or a node: real agents, launchers and processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.test_lost_nodes import QUICK
from tests.cluster import Cluster, a_cluster, kill_all_naming
from tests.launcher_rig import is_alive

MEMBER = (
    "echo $$ $WORLD_SIZE $NNODES > {place}/$TGPU_ALLOCATION_ID.$TGPU_MEMBER.new; "
    "mv {place}/$TGPU_ALLOCATION_ID.$TGPU_MEMBER.new {place}/$TGPU_ALLOCATION_ID.$TGPU_MEMBER; "
    "exec sleep 600"
)


def began(place: Path, allocation: str) -> dict[int, list[int]]:
    """By member: its pid and the world size it was given."""
    found = sorted(place.glob(f"{allocation}.?"))
    return {int(path.name[-1]): [int(word) for word in path.read_text().split()] for path in found}


def members(cluster: Cluster, job: str) -> dict[int, str]:
    """The nodes of the members of the last attempt."""
    with cluster.client() as client:
        return {p["member"]: p["node"] for p in client.get(job)["allocation"]}


def three_members(cluster: Cluster, place: Path) -> tuple[str, dict[int, list[int]]]:
    """A gang with a minimum of two members, and the world size that each recorded at its start."""
    options = ("--members", 3, "--min-members", 2, "--gpus", 1)
    job = cluster.submit(*options, "--", "sh", "-c", MEMBER.format(place=place))
    cluster.until(lambda: len(began(place, f"{job}.1")) == 3, "all three run")
    cluster.until(lambda: cluster.states(job) == {"running"}, "that is known")
    return job, began(place, f"{job}.1")


@pytest.mark.slow
def test_elastic_gang_continues_with_fewer_members_after_node_death(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with a_cluster("n0", "n1", "n2", gpus="1xH100", **QUICK) as cluster:
        job, first = three_members(cluster, tmp_path)
        assert {tuple(told[1:]) for told in first.values()} == {(3, 3)}
        placed = members(cluster, job)
        dead = placed[2]

        cluster.agents[dead].kill()
        kill_all_naming(cluster.directory / dead)
        cluster.until(lambda: not is_alive(first[2][0]), "its member died with it")
        cluster.wait_for_nodes(dead, state="lost")
        # It is unknown whether the member still runs, so nothing is started a second time.
        assert all(is_alive(first[member][0]) for member in (0, 1))
        assert began(tmp_path, f"{job}.2") == {}

        cluster.tgpu("nodes", "confirm-dead", dead, "--yes")
        cluster.until(lambda: len(began(tmp_path, f"{job}.2")) == 2, "it starts with two")
        cluster.until(lambda: cluster.states(job) == {"running"}, "that is known")
        second = began(tmp_path, f"{job}.2")
        assert {tuple(told[1:]) for told in second.values()} == {(2, 2)}
        assert not any(is_alive(told[0]) for told in first.values())
        assert sorted(members(cluster, job).values()) == sorted({*placed.values()} - {dead})
        with cluster.client() as client:
            events = client.call("GET", "/api/v1/events?after=0&limit=1000")["events"]
        (resized,) = (event for event in events if event["kind"] == "resized")
        assert (resized["data"]["from"], resized["data"]["to"]) == (3, 2)
        cluster.tgpu("cancel", job)
        cluster.until(lambda: cluster.states(job) == {"cancelled"}, "it is over")


def test_elastic_gang_continues_with_fewer_members_after_member_is_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with a_cluster("n0", "n1", "n2", gpus="1xH100", **QUICK) as cluster:
        job, first = three_members(cluster, tmp_path)

        os.kill(first[1][0], signal.SIGKILL)
        cluster.until(lambda: len(began(tmp_path, f"{job}.2")) == 2, "it starts with two")
        cluster.until(lambda: cluster.states(job) == {"running"}, "that is known")
        second = began(tmp_path, f"{job}.2")
        assert {tuple(told[1:]) for told in second.values()} == {(2, 2)}
        assert not any(is_alive(told[0]) for told in first.values())

        # It cannot shrink below two, and no retries were requested.
        os.kill(second[0][0], signal.SIGKILL)
        cluster.until(lambda: cluster.states(job) == {"failed"}, "it is given up")
        with cluster.client() as client:
            assert client.get(job)["signal"] == signal.SIGKILL
