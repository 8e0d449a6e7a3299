"""Real servers on a PostgreSQL that accepts queries and does not finish them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gpu_scheduler.model.errors import StoreUnavailable
from tests.ha_cluster import Servers, several_servers

pytestmark = pytest.mark.slow

SCRIPT = "cd $0; echo $$ >> runs; while [ ! -e go ]; do sleep 0.05; done; exit 7"
SAID = "a commit has been running for"
READ_ANEW = ("orders will be sent after the reload", "commit failed; the batch is rolled back")
LEAD_S = 4
"""The lease lasts longer than a busy machine may stall."""
LOCKED_S = 2 * LEAD_S
"""A lock is held for at least this long."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Servers]:
    patience = {
        "database_connect_timeout_s": "1",
        "replication_heartbeat_timeout_s": str(LEAD_S),
    }
    with several_servers("a", "b", agents=("n1",), **patience) as cluster:
        yield cluster


def store_of(cluster: Servers, name: str) -> tuple[str, str]:
    """The status of a server and of its store."""
    with cluster.only(name) as client:
        health = client.health()
    return str(health["status"]), str(health["checks"]["store"])


@pytest.mark.parametrize(
    "lock",
    ["jobs IN EXCLUSIVE MODE", "jobs IN ACCESS EXCLUSIVE MODE"],
    ids=["commits wait", "commits and reads wait"],
)
def test_slow_database_delays_new_work_without_losing_jobs_nodes_or_leadership(
    cluster: Servers, tmp_path: Path, lock: str
) -> None:
    url = cluster.environment["GPU_SCHEDULER_DATABASE_URL"]
    leader = cluster.leader()
    before = cluster.leadership(leader)
    with cluster.only(leader) as client, cluster.client() as own, ThreadPoolExecutor(1) as pool:
        running = client.submit(["sh", "-c", SCRIPT, str(tmp_path)], gpus=1)
        cluster.until((tmp_path / "runs").exists, "it runs")
        told = node_events(url)
        with psycopg.connect(url) as other:
            other.execute(f"LOCK TABLE {lock}")
            submitting = pool.submit(own.submit, ["true"], gpus=1)
            cluster.until(lambda: SAID in store_of(cluster, leader)[1], "health says so")
            assert store_of(cluster, leader)[0] == "degraded"
            if "ACCESS" in lock:
                with pytest.raises(StoreUnavailable, match="is not available"):
                    list(client.list())
                assert store_of(cluster, leader)[0] == "degraded"
            other.execute(f"SELECT pg_sleep({LOCKED_S})")
            assert not submitting.done(), "nothing is acknowledged that is not committed"
        after = submitting.result(60)
        cluster.until(lambda: SAID not in store_of(cluster, leader)[1], "nobody waits any more")
        assert client.wait(after.id, 60)["state"] == "completed"
        (tmp_path / "go").touch()
        assert client.wait(running.id, 60)["exit_code"] == 7
        assert {job["id"] for job in client.list()} >= {running.id, after.id}
    assert len((tmp_path / "runs").read_text().split()) == 1
    # A leader that reloads its state registers its nodes again, and only
    # then: its log says so.
    said = cluster.servers[leader].log()
    heard_again = {"node_online"} if any(line in said for line in READ_ANEW) else set()
    new = {kind for _, kind in node_events(url)[len(told) :]}
    assert new <= heard_again, f"no node was given up\n{said[-3000:]}"
    now = cluster.leadership(leader)
    assert (now["role"], now["term"]) == ("leader", before["term"])


def node_events(url: str) -> list[Any]:
    """All stored events of nodes."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT sequence, kind FROM events WHERE kind LIKE 'node%'")
        return found.fetchall()
