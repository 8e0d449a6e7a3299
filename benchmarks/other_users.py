"""Jobs of another user on a server of root's, beside own ones: /bin/true on eight devices.

The value is the part of the own rate that is left for somebody else: such a job changes its user
and its groups before it begins. Only root can measure it.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import traceback
from collections.abc import Callable

from benchmarks.live import RUNS, LiveServer, middle, spent, wait_until
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded, skipped

JOBS = 1_000
LEAST = 0.7
NOBODY = 65_534
_BODY = [
    {"name": f"true-{number}", "command": ["/bin/true"], "gpu_count": 1} for number in range(JOBS)
]


def measure(repeats: int) -> Result:
    """Take turns, so that both see the same machine."""
    if os.geteuid() != 0:
        return skipped("users", "only a server of root's runs jobs of others")
    laps = min(repeats, RUNS)
    own: list[float] = []
    others: list[float] = []
    cpu: dict[str, dict[str, float]] = {}
    with LiveServer() as server:
        for lap in range(laps):
            show(f"users: {lap + 1} of {laps}")
            before = server.cpu_seconds()
            own.append(_lap(server, lambda: server.client.submit_many(_BODY)))
            between = server.cpu_seconds()
            others.append(_lap(server, lambda: _submit_as_nobody(server.http_port)))
            cpu = {"own": spent(before, between), "others": spent(between, server.cpu_seconds())}
    return result(
        "users",
        middle(others) / middle(own),
        "of the rate of own jobs",
        floor=1.0,
        repeats=laps,
        target=LEAST,
        own_runs=[rounded(rate) for rate in own],
        others_runs=[rounded(rate) for rate in others],
        cpu_ms_per_job={
            whose: {kind: rounded(1000 * used / JOBS) for kind, used in by_kind.items()}
            for whose, by_kind in cpu.items()
        },
    )


def _lap(server: LiveServer, submit: Callable[[], object]) -> float:
    done_before = server.client.status()["completed_jobs"]
    began = time.perf_counter()
    submit()
    wait_until(lambda: server.client.status()["completed_jobs"] - done_before >= JOBS, every_s=0.1)
    return JOBS / (time.perf_counter() - began)


def _submit_as_nobody(port: int) -> None:
    """By a child that has become somebody else: who calls is what the kernel says."""
    "localhost".encode("idna")  # loaded now: the child may not be able to read Python's own files
    pid = os.fork()
    if pid:
        if os.waitpid(pid, 0)[1]:
            raise AssertionError("a submission by another user failed")
        return
    status = 1
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/v1/jobs", json.dumps(_BODY), headers)
        answer = connection.getresponse()
        status = 0 if answer.status == http.client.CREATED else 1
    except BaseException:  # noqa: BLE001 - a child must not go on as a second benchmark
        traceback.print_exc()
    finally:
        os._exit(status)
