"""The API alone: submissions over HTTP into a loop that does nothing, from another process.

The value is the rate of jobs that come 1,000 in a request, each with a name and an argument of its
own; beside it stand single submissions at 32 connections with their p99. The floor is msgspec
decoding the same bodies and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from time import perf_counter, process_time
from typing import Any

import msgspec
import uvloop

from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from gpu_scheduler.api.http.app import build
from gpu_scheduler.api.http.listeners import Addresses, BoundSockets, serve
from gpu_scheduler.api.interfaces import ApiSettings
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Command, SubmitAll
from gpu_scheduler.control.self_monitoring import LoopMetrics
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.job import Job
from gpu_scheduler.simulator.predictors import Stated
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import AuditRow
from gpu_scheduler.wire.jobs import JobRequest

CONNECTIONS = 32
JOBS_PER_REQUEST = 1_000
BULK_REQUESTS = 60
SINGLE_REQUESTS = 8_000
BULK_TARGET = 47_000
"""Of the whole server; its API alone must be well above."""


class NullService:
    """Accepts everything and remembers nothing."""

    def __init__(self) -> None:
        """A core and a store that stay empty, for whoever looks."""
        self.core = Core(preset("easy"), Stated())
        self.store = MemoryStore()
        self.telemetry: dict[str, Any] = {}
        self.last_plan = None
        self.loop_metrics = LoopMetrics()
        self.trouble = self.cycle_trouble = self.away = ""
        self._job = Job(id="job-1", number=1, submit_ms=0)

    def now_ms(self) -> int:
        """No time passes."""
        return 0

    def calendar_ms(self) -> int:
        """No time passes."""
        return 0

    def look_for_tokens(self) -> None:
        """There are none."""

    def note(self, row: AuditRow) -> None:
        """Nobody looks at records here."""

    async def apply(self, message: Command, *_: object, **__: object) -> Outcome:
        """Say that everything was done."""
        count = len(message.submissions) if isinstance(message, SubmitAll) else 1
        return Outcome(jobs=[self._job] * count)

    async def subscribe(self, *_: object) -> AsyncIterator[Any]:
        """Nothing ever happens."""
        nothing: tuple[Any, ...] = ()
        for event in nothing:
            yield event


def measure(repeats: int) -> Result:
    """Serve here, call from a child."""
    return uvloop.run(_measure(repeats))


async def _measure(repeats: int) -> Result:
    addresses = Addresses(http=("127.0.0.1", 0), metrics=None)
    listening = BoundSockets(addresses)
    applications = build(NullService(), ApiSettings(server_uid=os.getuid()))
    server = await serve(applications, listening)
    bulk: list[dict[str, float]] = []
    single: list[dict[str, float]] = []
    for number in range(repeats):
        show(f"http: {number + 1} of {repeats}")
        bulk.append(await lap(listening.http_port, "bulk", BULK_REQUESTS, 2))
        single.append(await lap(listening.http_port, "single", SINGLE_REQUESTS, CONNECTIONS))
    await server.close()
    best = max(bulk, key=lambda one: one["rate"])
    best_single = max(single, key=lambda one: one["rate"])
    return result(
        "http",
        best["rate"] * JOBS_PER_REQUEST,
        "jobs/s",
        floor=_floor(),
        repeats=repeats,
        target=BULK_TARGET,
        cpu_value=max(one["cpu_rate"] for one in bulk) * JOBS_PER_REQUEST,
        single_requests_per_second=rounded(best_single["rate"]),
        single_by_cpu=rounded(max(one["cpu_rate"] for one in single)),
        single_p50_ms=rounded(best_single["p50_ms"]),
        single_p99_ms=rounded(best_single["p99_ms"]),
        connections=CONNECTIONS,
    )


async def lap(port: int | None, kind: str, requests: int, connections: int) -> dict[str, float]:
    """Call from a child; rates, and the CPU time of this process meanwhile."""
    command = [sys.executable, "-m", "benchmarks.http"]
    command += [str(port), kind, str(requests), str(connections)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    await child.stdout.readline()
    before = process_time()
    line = await child.stdout.readline()
    spent = process_time() - before
    await child.wait()
    found: dict[str, float] = json.loads(line)
    return {**found, "cpu_rate": requests / spent}


def _floor() -> float:
    decoder = msgspec.json.Decoder(list[JobRequest])
    body = _bulk_body(0)
    began = perf_counter()
    for _ in range(20):
        decoder.decode(body)
    return 20 * JOBS_PER_REQUEST / (perf_counter() - began)


# --- the child


def _job(number: int) -> dict[str, Any]:
    return {
        "name": f"sweep-{number}",
        "gpu_count": 1,
        "cpu_cores": 4,
        "memory_mb": 16000,
        "command": ["python", "train.py", "--seed", str(number)],
    }


def _bulk_body(request: int) -> bytes:
    first = request * JOBS_PER_REQUEST
    return msgspec.json.encode([_job(first + i) for i in range(JOBS_PER_REQUEST)])


def _request(body: bytes) -> bytes:
    head = (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Caller(asyncio.Protocol):
    """One connection that sends the next request when the last was answered."""

    def __init__(self, waiting: list[bytes], took: list[float], done: asyncio.Event) -> None:
        self._waiting, self._took, self._done = waiting, took, done
        self._seen = b""
        self._sent = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send_next(self) -> None:
        if not self._waiting:
            self._done.set()
            return
        self._sent = perf_counter()
        self._transport.write(self._waiting.pop())

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, gap, body = self._seen.partition(b"\r\n\r\n")
        if not gap:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 201"):
            raise AssertionError(self._seen[:500])
        self._seen = b""
        self._took.append(perf_counter() - self._sent)
        self.send_next()


async def _call(port: int, kind: str, requests: int, connections: int) -> None:
    make = _bulk_body if kind == "bulk" else lambda i: msgspec.json.encode(_job(i))
    waiting = [_request(make(i)) for i in range(requests)]
    took: list[float] = []
    callers = []
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        done = asyncio.Event()
        _, caller = await loop.create_connection(
            partial(_Caller, waiting, took, done), "127.0.0.1", port
        )
        callers.append((caller, done))
    print("ready", flush=True)
    began = perf_counter()
    for caller, _ in callers:
        caller.send_next()
    for _, done in callers:
        await done.wait()
    seconds = perf_counter() - began
    took.sort()
    answer = {
        "rate": requests / seconds,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    port, kind, requests, connections = sys.argv[1:]
    uvloop.run(_call(int(port), kind, int(requests), int(connections)))
