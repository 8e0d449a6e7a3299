"""What 200 agents with 8 devices each cost the server while nothing happens.

20 of them are real, the others light. Each sends a heartbeat and the readings of its devices about
every 5 seconds. The value is the part of one core that the server takes, on PostgreSQL. The floor
is the same server without any agent. Beside it: how long 1,000 agents need until all of them are
online, and a job that then runs.
"""

from __future__ import annotations

import time

from benchmarks.live import RUNS, middle
from benchmarks.live_cluster import LiveCluster, live_cluster
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

AGENTS = 200
REAL = 20
MANY = 1_000
MOST_PERCENT = 30.0
SETTLE_S = 10.0
WATCH_S = 20.0


def measure(repeats: int) -> Result:
    """First alone, then with 200 agents, then with 1,000 on a new server."""
    laps = min(repeats, RUNS)
    with live_cluster() as cluster:
        show("heartbeats: the server alone")
        floor = _percent(cluster)
        show(f"heartbeats: {REAL} real agents come")
        cluster.start_real_agents(REAL)
        cluster.start_agents(AGENTS - REAL)
        time.sleep(SETTLE_S)
        percents = []
        for lap in range(laps):
            show(f"heartbeats: {lap + 1} of {laps}")
            percents.append(_percent(cluster))
    with live_cluster() as cluster:
        show(f"heartbeats: {MANY} agents come")
        began = time.perf_counter()
        cluster.start_agents(MANY)
        came_s = time.perf_counter() - began
        job = cluster.client.submit(["/bin/true"], gpu_count=8)
        state = job.wait(60)["state"]
        many = _percent(cluster)
    return result(
        "heartbeats",
        middle(percents),
        "% of a core",
        floor=floor,
        repeats=laps,
        target=MOST_PERCENT,
        bound=LESS,
        also_met=state == "completed",
        runs=[rounded(one) for one in percents],
        agents=AGENTS,
        real_agents=REAL,
        many_agents=MANY,
        many_online_after_s=rounded(came_s),
        many_percent=rounded(many),
        job_among_many=state,
    )


def _percent(cluster: LiveCluster) -> float:
    before = cluster.cpu_seconds()["server"]
    time.sleep(WATCH_S)
    return 100 * (cluster.cpu_seconds()["server"] - before) / WATCH_S
