"""What 100,000 pending jobs cost: submission, list, memory, restart; and 1,000 running at once.

The value is how much longer the slower of a submission and a first page takes than with an empty
queue (of one page), which is the floor.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from benchmarks.live import RUNS, LiveServer, middle, wait_until
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded

PENDING = 100_000
MOST_TIMES = 2.0
MOST_MB = 400
RESTART_S = 5.0
AT_ONCE = 1_000
REQUESTS = 40
PAGE = 100


def measure(repeats: int) -> Result:
    """Measure empty, fill, measure again, restart."""
    laps = min(repeats, RUNS)
    with LiveServer() as server:
        server.occupy()
        # As many as a page shows, so that both pages have as many rows.
        server.fill(PAGE)
        empty = _figures(server, laps)
        show(f"pending: {PENDING} jobs")
        server.fill(PENDING)
        full = _figures(server, laps)
        memory = server.memory_mb()["server"]
        restarts = [_restart(server) for _ in range(laps)]
    many = _many_at_once()
    ratios = {name: middle(full[name]) / middle(empty[name]) for name in empty}
    return result(
        "pending",
        max(ratios.values()),
        "times an empty queue",
        floor=1.0,
        repeats=laps,
        target=MOST_TIMES,
        bound=LESS,
        also_met=memory <= MOST_MB and middle(restarts) <= RESTART_S and many["lost"] == 0,
        ratios={name: rounded(ratio) for name, ratio in ratios.items()},
        empty_ms={name: [rounded(one) for one in times] for name, times in empty.items()},
        full_ms={name: [rounded(one) for one in times] for name, times in full.items()},
        server_mb=rounded(memory),
        server_mb_target=MOST_MB,
        restart_seconds=[rounded(one) for one in restarts],
        restart_target_seconds=RESTART_S,
        at_once=many,
    )


def _figures(server: LiveServer, laps: int) -> dict[str, list[float]]:
    client = server.client

    def submit() -> object:
        return client.submit(["/bin/true"], gpu_count=1)

    def page() -> object:
        return client.page(limit=PAGE)

    return {
        "submit": [_median_ms(submit) for _ in range(laps)],
        "page": [_median_ms(page) for _ in range(laps)],
    }


def _median_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return 1000 * middle(took)


def _restart(server: LiveServer) -> float:
    """Seconds from the start of another server until a job of the queue has run to its end.

    The server before it is killed. What holds the devices is cancelled as soon as the new one
    answers, so that the queue can move.
    """
    holder = next(job["id"] for job in server.client.list(state="running", name="occupies"))
    done = server.client.status()["completed_jobs"]
    os.kill(server.facts["pid"], signal.SIGKILL)
    server.client.close()
    began = time.perf_counter()
    server.start()
    server.client.cancel(holder)
    wait_until(lambda: server.client.status()["completed_jobs"] > done)
    took = time.perf_counter() - began
    urgent = server.client.submit(
        ["sleep", "3600"], name="occupies", gpu_count=8, priority="urgent"
    )
    wait_until(lambda: urgent.state() == "running")
    return took


def _many_at_once() -> dict[str, float]:
    """As many real processes at once as there are declared devices."""
    show(f"pending: {AT_ONCE} at once")
    with LiveServer(f"{AT_ONCE}xA100-80GB") as server:
        client = server.client
        began = time.perf_counter()
        client.submit_many(
            {"name": f"at-once-{number}", "command": ["sleep", "600"], "gpu_count": 1}
            for number in range(AT_ONCE)
        )
        wait_until(lambda: _running(server) == AT_ONCE, every_s=0.1)
        started = time.perf_counter() - began
        memory = server.memory_mb()
        ids = [job["id"] for job in client.list(state="running")]
        began = time.perf_counter()
        for job_id in ids:
            client.cancel(job_id)
        wait_until(lambda: client.status()["running_jobs"] == 0, every_s=0.1)
        ended = time.perf_counter() - began
        cancelled = client.page(state="cancelled", limit=1)["total"]
    return {
        "running": AT_ONCE,
        "seconds_to_start": rounded(started),
        "seconds_to_cancel": rounded(ended),
        "lost": AT_ONCE - cancelled,
        "server_mb": rounded(memory["server"]),
        "launcher_mb": rounded(memory["launcher"]),
    }


def _running(server: LiveServer) -> int:
    total: int = server.client.page(state="running", limit=1)["total"]
    return total
