"""Jobs from submission to running after the agent's word, committed on PostgreSQL, for a while.

180 light agents with 8 devices each answer every start at once and end the job at once, so devices
are never short and every job costs its whole life: submitted in bulk, decided, ordered, begun,
ended. The value is jobs that have begun, per second of wall time; `cpu_value` per second of the
server's own CPU time. 20 real agents are there too, and cordoned: what they would run costs more of
one machine than all the rest. The floor is what one psycopg connection commits, one row to a
commit.
"""

from __future__ import annotations

import time

import psycopg

from benchmarks.live import RUNS, middle, spent, wait_until
from benchmarks.live_cluster import LiveCluster, live_cluster
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded

AGENTS = 200
REAL = 20
JOBS = 20_000
TARGET = 1_000
FLOOR_S = 2.0
LONGEST_S = 300.0


def measure(repeats: int) -> Result:
    """The same number of jobs in every lap, all of them over before the next."""
    laps = min(repeats, RUNS)
    rates: list[float] = []
    by_cpu: list[float] = []
    cpu: dict[str, float] = {}
    with live_cluster() as cluster:
        floor = _floor(cluster.database_url)
        cluster.start_real_agents(REAL, cordoned=True)
        cluster.start_agents(AGENTS - REAL)
        for lap in range(laps):
            show(f"throughput: {lap + 1} of {laps}")
            before = cluster.cpu_seconds()
            rates.append(_lap(cluster))
            cpu = spent(before, cluster.cpu_seconds())
            by_cpu.append(JOBS / cpu["server"])
    return result(
        "throughput",
        middle(rates),
        "jobs/s",
        floor=floor,
        repeats=laps,
        target=TARGET,
        cpu_value=middle(by_cpu),
        runs=[rounded(rate) for rate in rates],
        cpu_ms_per_job={kind: rounded(1000 * used / JOBS) for kind, used in cpu.items()},
        agents=AGENTS,
        real_agents=REAL,
        jobs=JOBS,
    )


def _lap(cluster: LiveCluster) -> float:
    done = cluster.client.status()["completed_jobs"]
    jobs = [{"name": "light", "command": ["/bin/true"], "gpu_count": 1}] * JOBS
    began = time.perf_counter()
    cluster.client.submit_many(jobs)
    wait_until(
        lambda: cluster.client.status()["completed_jobs"] - done >= JOBS, LONGEST_S, every_s=0.1
    )
    return JOBS / (time.perf_counter() - began)


def _floor(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as bare:
        bare.execute("CREATE TABLE bare (n bigint)")
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < FLOOR_S:
            bare.execute("INSERT INTO bare VALUES (%s)", (count,))
            count += 1
        return count / (time.perf_counter() - began)
