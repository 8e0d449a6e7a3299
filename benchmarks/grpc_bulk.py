"""Bulk submissions over gRPC, durable, beside the same jobs over REST in the same run.

A real `tgpu server` on SQLite with synchronous=FULL; jobs differ in name and argument, come 1,000
in a call, two calls at a time, and are held so that nothing else happens. The value is jobs per
second over gRPC (SubmitJobs); the floor is what REST (POST /jobs/bulk) takes of the same jobs, each
from a client that has built its messages before. `cpu_value` counts the server's own CPU time.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import grpc
import msgspec

from benchmarks.live import RUNS, middle, spent
from benchmarks.live_cluster import LiveCluster, live_cluster
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from gpu_scheduler.wire import scheduler_pb2 as pb

JOBS_PER_CALL = 1_000
CALLS = 20
AT_ONCE = 2
METHOD = "/gpu_scheduler.v1.SchedulerService/SubmitJobs"


def measure(repeats: int) -> Result:
    """Both ways in turn, in every lap."""
    laps = min(repeats, RUNS)
    jobs = CALLS * JOBS_PER_CALL
    found: dict[str, list[float]] = {"grpc": [], "rest": []}
    by_cpu: dict[str, list[float]] = {"grpc": [], "rest": []}
    with live_cluster(postgres=False) as cluster:
        facts = json.loads((cluster.directory / "server.json").read_bytes())
        token = cluster.client.call(
            "POST",
            "/api/v1/tokens",
            {"user": cluster.client.call("GET", "/api/v1/me")["user"], "role": "admin"},
        )["token"]
        for lap in range(laps):
            for kind, send in (("rest", _rest), ("grpc", _grpc)):
                show(f"grpc: {kind}, {lap + 1} of {laps}")
                before = cluster.cpu_seconds()
                took_s = send(facts, str(token), lap)
                found[kind].append(jobs / took_s)
                by_cpu[kind].append(jobs / spent(before, cluster.cpu_seconds())["server"])
                _check(cluster, jobs * (2 * lap + (1 if kind == "rest" else 2)))
    return result(
        "grpc",
        middle(found["grpc"]),
        "jobs/s",
        floor=middle(found["rest"]),
        repeats=laps,
        cpu_value=middle(by_cpu["grpc"]),
        rest_by_cpu=rounded(middle(by_cpu["rest"])),
        runs={kind: [rounded(rate) for rate in rates] for kind, rates in found.items()},
        jobs=jobs,
        jobs_per_call=JOBS_PER_CALL,
    )


def _grpc(facts: dict[str, str], token: str, lap: int) -> float:
    messages = [
        pb.SubmitJobsRequest(
            jobs=[
                pb.JobSpec(
                    name=f"g-{lap}-{number}",
                    gpu_count=1,
                    command=["python", "train.py", "--seed", str(number)],
                    hold=True,
                )
                for number in _numbers(call)
            ]
        )
        for call in range(CALLS)
    ]
    who = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(facts["nodes"]) as channel:
        grpc.channel_ready_future(channel).result(10)
        submit = channel.unary_unary(
            METHOD,
            request_serializer=pb.SubmitJobsRequest.SerializeToString,
            response_deserializer=pb.SubmitJobsAnswer.FromString,
        )

        def send(message: pb.SubmitJobsRequest) -> None:
            if submit(message, metadata=who, timeout=120).count != JOBS_PER_CALL:
                raise AssertionError("not all were taken")

        return _all(send, messages)


def _rest(facts: dict[str, str], token: str, lap: int) -> float:
    bodies = [
        msgspec.json.encode(
            [
                {
                    "name": f"r-{lap}-{number}",
                    "gpu_count": 1,
                    "command": ["python", "train.py", "--seed", str(number)],
                    "hold": True,
                }
                for number in _numbers(call)
            ]
        )
        for call in range(CALLS)
    ]
    host, _, port = facts["http"].removeprefix("http://").rpartition(":")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def send(body: bytes) -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        connection.request("POST", "/api/v1/jobs/bulk", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 201 or json.loads(text)["count"] != JOBS_PER_CALL:
            raise AssertionError(text[:300])

    return _all(send, bodies)


def _numbers(call: int) -> range:
    return range(call * JOBS_PER_CALL, (call + 1) * JOBS_PER_CALL)


def _all(send: Callable[[Any], None], messages: list[Any]) -> float:
    """Seconds until all were answered."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        began = perf_counter()
        list(threads.map(send, messages))
        return perf_counter() - began


def _check(cluster: LiveCluster, jobs: int) -> None:
    total = cluster.client.status()["total_jobs"]
    if total != jobs:
        raise AssertionError(f"{total} jobs are there, and {jobs} were submitted")
