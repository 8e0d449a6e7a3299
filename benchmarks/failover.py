"""How long nobody decides after the leader was killed with -9, with 200 agents and work to do.

Two real servers on PostgreSQL with the default times (a lease of 6 s, renewed every 2 s), 20 real
agents, and light ones that speak the real protocol. Jobs come to an end all the time, and more
wait, so that there is always something to decide. The value is the time from the kill to the first
commit of another server that gives devices to a job, as seen in the history. The floor is what was
left of the lease when the leader was killed: before that nobody may lead. In each lap the next
leader is then stopped in order, and hands over: `handed_over_s` is the same time for that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from benchmarks.live import RUNS, wait_until
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded
from tests.ha_cluster import Servers, several_servers

AGENTS = 200
REAL = 20
JOBS = 20_000
RUN_MS = 3_000
JOB = {"command": ["/bin/sleep", "3"], "gpus": 1, "capture": False}
MOST_S = 10.0
SETTLE_S = 5.0
LOOK_S = 0.02
DEFAULTS: dict[str, Any] = {
    "replication_heartbeat_interval_s": "2",
    "replication_heartbeat_timeout_s": "6",
}


def measure(repeats: int) -> Result:
    """Kill the leader again and again; the worst case counts."""
    laps = min(repeats, RUNS)
    found: list[float] = []
    floors: list[float] = []
    back: list[float] = []
    handed_over: list[float] = []
    with several_servers("a", "b", **DEFAULTS) as cluster:
        for number in range(REAL):
            cluster.start_agent(f"real-{number}")
        agents = _agents(cluster)
        try:
            _wait_for_agents(cluster)
            for lap in range(laps):
                show(f"failover: {lap + 1} of {laps}")
                with cluster.client() as client:
                    client.submit_many([JOB] * JOBS)
                time.sleep(SETTLE_S)
                leader = cluster.leader()
                floors.append(_left_s(cluster))
                decided_s, back_s = _kill(cluster, leader)
                found.append(decided_s)
                back.append(back_s)
                cluster.start(leader)
                handed_over.append(_stop(cluster, cluster.leader()))
        finally:
            agents.kill()
            agents.wait()
    return result(
        "failover",
        max(found),
        "s",
        floor=max(floors),
        repeats=laps,
        target=MOST_S,
        bound=LESS,
        agents=AGENTS,
        real_agents=REAL,
        runs=[rounded(one) for one in found],
        left_of_lease_s=[rounded(one) for one in floors],
        all_agents_back_s=[rounded(one) for one in back],
        handed_over_s=[rounded(one) for one in handed_over],
    )


def _agents(cluster: Servers) -> subprocess.Popen[bytes]:
    """Light agents that know both servers, by the private sockets of their machines."""
    words = []
    for name in cluster.servers:
        words += ["--target", f"unix:{cluster.directory / name / 'agent.sock'}"]
    words += ["--count", str(AGENTS - REAL), "--run-ms", str(RUN_MS)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.light_agents", *words])


def _wait_for_agents(cluster: Servers) -> None:
    with cluster.client() as client:
        wait_until(lambda: client.status()["online_nodes"] >= AGENTS, 120)


def _kill(cluster: Servers, leader: str) -> tuple[float, float]:
    """Kill it; the seconds to the next decision, and until all agents are there again."""
    with psycopg.connect(cluster.environment["GPU_SCHEDULER_DATABASE_URL"], autocommit=True) as db:
        cluster.servers[leader].kill()
        began = time.perf_counter()
        last = _last_event(db)
        while not _has_decided(db, last):
            time.sleep(LOOK_S)
        decided_s = time.perf_counter() - began
    cluster.leader(other_than=leader)
    _wait_for_agents(cluster)
    return decided_s, time.perf_counter() - began


def _stop(cluster: Servers, leader: str) -> float:
    """Stop it and start it again; the seconds from the signal to the next one's first decision."""
    url = cluster.environment["GPU_SCHEDULER_DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as db, ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        stopping = pool.submit(cluster.servers[leader].stop)
        while _holder(db) in {leader, ""}:
            time.sleep(LOOK_S)
        last = _last_event(db)
        while not _has_decided(db, last):
            time.sleep(LOOK_S)
        decided_s = time.perf_counter() - began
        stopping.result()
    cluster.start(leader)
    _wait_for_agents(cluster)
    return decided_s


def _holder(db: psycopg.Connection[tuple[str]]) -> str:
    row = db.execute("SELECT holder FROM leadership").fetchone()
    return row[0] if row is not None else ""


def _last_event(db: psycopg.Connection[tuple[int]]) -> int:
    row = db.execute("SELECT last_event FROM meta").fetchone()
    assert row is not None
    return int(row[0])


def _has_decided(db: psycopg.Connection[tuple[int]], after: int) -> bool:
    found = db.execute(
        "SELECT 1 FROM events WHERE sequence > %s AND kind = 'scheduled' LIMIT 1", (after,)
    )
    return found.fetchone() is not None


def _left_s(cluster: Servers) -> float:
    with psycopg.connect(cluster.environment["GPU_SCHEDULER_DATABASE_URL"]) as db:
        row = db.execute(
            "SELECT extract(epoch FROM until - clock_timestamp())::float8 FROM leadership"
        ).fetchone()
    assert row is not None
    return float(row[0])
