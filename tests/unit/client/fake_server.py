"""A small in-process server with the REST API's formats.

Jobs do not run: a test says when one starts, writes or ends.
"""

import json
import re
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gpu_scheduler.client.websocket import accept_of
from gpu_scheduler.model.intervals import IntervalSet

USER = "ada"
WHEN = "2026-01-31T18:00:00.000Z"


class FakeServer:
    """The state of the server, and what a test does to it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = f"{directory}/server.sock"
        self.changed = threading.Condition()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.logs: dict[str, bytes] = {}
        """By job, or by attempt as in job-1.2."""
        self.lost_logs: set[str] = set()
        self.slow_cancels: list[str] = []
        """Jobs that do not end at once when cancelled; each is used once."""
        self.tenants: dict[str, dict[str, Any]] = {"default": {"id": "default", "name": "default"}}
        self.nodes: list[dict[str, Any]] = [NODE]
        self.paused: set[int] = set()
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.refused_until = 0
        """If more than 0: only so many requests are rejected."""
        self.keys: list[str | None] = []
        self.queued_tasks = 0
        """If more than 0: this number, whatever waits."""
        self.has_events = True
        self.events: list[dict[str, Any]] = []
        self.closing = False

    # --- for tests

    def change(self, job_id: str, **values: Any) -> None:
        with self.changed:
            self.jobs[job_id].update(values)
            self.events.append(
                {"sequence": len(self.events) + 1, "kind": "changed", "job_id": job_id, "data": {}}
            )
            self.changed.notify_all()

    def end(self, job_id: str, exit_code: int = 0, **more: Any) -> None:
        state = "completed" if exit_code == 0 and not more.get("signal") else "failed"
        self.change(
            job_id,
            **{"state": state, "exit_code": exit_code, "ended_at": WHEN, "reason": ""} | more,
        )

    def write(self, job_id: str, text: bytes) -> None:
        with self.changed:
            self.logs[job_id] = self.logs.get(job_id, b"") + text
            self.changed.notify_all()

    def when_submitted(self, exit_code: int = 0, output: bytes = b"", **more: Any) -> None:
        """End every job as soon as it is submitted."""
        self.ends = (exit_code, output, more)

    ends: tuple[int, bytes, dict[str, Any]] | None = None
    first_state = "pending"

    # --- requests

    def add(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            self.bodies.append(body)
            number = len(self.bodies)
        job = {
            "id": f"job-{number}",
            "job_id": f"job-{number}",
            "number": number,
            "name": body.get("name", ""),
            "tenant_id": body.get("tenant_id", "default"),
            "user": USER,
            "state": self.first_state,
            "reason": "waiting for 2 GPUs; 1 is free",
            "priority": body.get("priority", 750),
            "gpu_count": body.get("gpu_count", 0),
            "gpu_memory_mb": 0,
            "cpu_cores": 0,
            "memory_mb": 0,
            "command": body.get("command", []),
            "image": body.get("image", ""),
            "working_directory": body.get("working_directory", ""),
            "environment": body.get("environment", {}),
            "pool": "batch",
            "hold": False,
            "max_runtime_minutes": body.get("max_runtime_seconds", 0) / 60,
            "submitted_at": WHEN,
            "started_at": None,
            "ended_at": None,
            "attempt": 0,
            "exit_code": None,
            "signal": None,
            "array": None,
            "allocation": [],
            "dependencies": [],
            "retries": 0,
            "preemptions": 0,
            "runner": "process",
        }
        self.jobs[job["id"]] = job
        if self.ends is not None:
            self.write(job["id"], self.ends[1])
            self.end(job["id"], self.ends[0], **self.ends[2])
        return job

    def listed(self, query: dict[str, str]) -> dict[str, Any]:
        states = query.get("state", "").split(",") if query.get("state") else None
        found = [
            job
            for job in self.jobs.values()
            if (states is None or job["state"] in states)
            and query.get("user", job["user"]) == job["user"]
            and query.get("name", job["name"]) == job["name"]
            and query.get("tenant_id", job["tenant_id"]) == job["tenant_id"]
        ]
        sort = query.get("sort", "number")
        found.sort(key=lambda job: str(job[sort.lstrip("-")] or "").zfill(30))
        if sort.startswith("-"):
            found.reverse()
        start = int(query.get("cursor") or query.get("offset") or 0)
        end = start + int(query.get("limit", 100))
        return {
            "jobs": found[start:end],
            "total": len(found),
            "next_cursor": str(end) if end < len(found) else None,
        }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            """The client has left."""

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, {"error": message, "code": code, "details": {"asked": self.path}})

    def serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length)) if length else None
        self.fake.requests.append(f"{self.command} {self.path}")
        self.fake.keys.append(self.headers.get("Idempotency-Key"))
        over = 0 < self.fake.refused_until < len(self.fake.requests)
        if self.fake.refusal is not None and not over:
            self.answer(*self.fake.refusal)
            return
        path = unquote(parts.path).removeprefix("/api/v1")
        for method, pattern, action in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                action(self, *match.groups())
                return
        self.refuse(404, "not_found", f"there is nothing at {path}")

    do_GET = do_POST = do_DELETE = do_PATCH = serve  # noqa: N815

    def job(self, job_id: str) -> dict[str, Any] | None:
        name, _, task = job_id.partition("_")
        job = self.fake.jobs.get(name)
        if job is None:
            self.refuse(404, "not_found", f"there is no job {job_id}")
        elif task and job["array"] and int(task) not in IntervalSet.parse(job["array"]["tasks"]):
            self.refuse(404, "not_found", f"{name} has no task {task}")
            return None
        return job

    def submit(self) -> None:
        if isinstance(self.body, list):
            jobs = [self.fake.add(body) for body in self.body]
            self.answer(201, {"job_ids": [job["id"] for job in jobs], "count": len(jobs)})
            return
        job = self.fake.add(self.body)
        message = "Job submitted successfully"
        tasks = 100 if self.body.get("array") else 1
        self.answer(
            201,
            {"job_id": job["id"], "status": "submitted", "message": message, "tasks": tasks},
        )

    def show(self, job_id: str) -> None:
        if job := self.job(job_id):
            self.answer(200, job)

    def change(self, job_id: str) -> None:
        if self.job(job_id):
            self.fake.change(job_id, **self.body)
            self.answer(200, self.fake.jobs[job_id])

    def cancel(self, job_id: str) -> None:
        job = self.job(job_id)
        if job is None:
            return
        if job["state"] in ("completed", "failed", "cancelled"):
            self.refuse(409, "wrong_state", f"{job_id} is {job['state']}")
            return
        if job_id in self.fake.slow_cancels:
            self.fake.slow_cancels.remove(job_id)
        elif "tasks" not in self.query and "_" not in job_id:
            self.fake.change(job_id, state="cancelled", reason="cancelled", ended_at=WHEN)
        self.answer(200, {"job_id": job_id, "status": "cancelled", "message": "cancelled"})

    def act(self, job_id: str, deed: str) -> None:
        if self.job(job_id):
            if deed == "resubmit":
                self.answer(201, {"job_id": "job-99", "status": "submitted", "tasks": 3})
                return
            values = {
                "hold": {"hold": True},
                "release": {"hold": False},
                "retry": {"state": "pending"},
            }[deed]
            self.fake.change(job_id, **values)
            self.answer(200, self.fake.jobs[job_id])

    def correct_usage(self, job_id: str) -> None:
        if self.job(job_id):
            answer = {"job_id": job_id, "task": None, "run_seconds_before": 864_000.0}
            self.answer(
                200, answer | {name: self.body[name] for name in ("attempt", "run_seconds")}
            )

    def explain(self, job_id: str) -> None:
        if job := self.job(job_id):
            self.answer(
                200,
                {
                    "job_id": job_id,
                    "state": job["state"],
                    "reason": job["reason"],
                    "code": "resources",
                    "position": 3,
                    "expected_start": WHEN,
                    "expected_end": None,
                    "details": {"needs": "2 GPUs"},
                },
            )

    def log(self, job_id: str) -> None:
        if not self.job(job_id):
            return
        name = f"{job_id}.{self.query.get('attempt', self.fake.jobs[job_id]['attempt'])}"
        name = name if name in self.fake.logs else job_id
        if name in self.fake.lost_logs:
            self.refuse(503, "cluster_error", f"the output of {name} is on a dead node")
            return
        if "follow" not in self.query:
            self.answer(200, self.fake.logs.get(name, b""))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = int(self.query.get("offset", 0))
        while True:
            with self.fake.changed:
                self.fake.changed.wait_for(partial(self._is_news, job_id, name, sent))
                piece = self.fake.logs.get(name, b"")[sent:]
            if piece:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                sent += len(piece)
                continue
            self.wfile.write(b"0\r\n\r\n")
            return

    def _is_news(self, job_id: str, name: str, sent: int) -> bool:
        job = self.fake.jobs[job_id]
        over = job["state"] in ("completed", "failed", "cancelled")
        if job["attempt"]:
            asked = int(self.query.get("attempt", job["attempt"]))
            over = over or job["attempt"] > asked or job["state"] == "pending"
        return over or self.fake.closing or len(self.fake.logs.get(name, b"")) > sent

    def _has_event(self, sent: int) -> bool:
        return self.fake.closing or len(self.fake.events) > sent

    def stream(self) -> None:
        if not self.fake.has_events:
            self.refuse(404, "not_found", "no events here")
            return
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_of(self.headers["Sec-WebSocket-Key"]))
        self.end_headers()
        self.close_connection = True
        sent = int(self.query.get("after", len(self.fake.events)))
        self.wfile.write(b"\x89\x02hi")
        while True:
            with self.fake.changed:
                self.fake.changed.wait_for(partial(self._has_event, sent))
                news = self.fake.events[sent:]
            if not news:
                return
            for event in news:
                text = json.dumps(event).encode()
                try:
                    self.wfile.write(b"\x81\x7e" + len(text).to_bytes(2, "big") + text)
                except OSError:
                    return
            sent += len(news)

    def gpus(self) -> None:
        gpu = {"node": "box", "uuid": "GPU-0", "model": "A100-80GB", "memory_mb": 81920}
        gpu |= {"allocated_share": 0.5, "allocated_memory_mb": 40960, "jobs": ["job-1"]}
        gpu |= {"users": [USER]}
        gpu |= {"utilisation_percent": 42.0, "memory_used_mb": 1000, "temperature_c": 61}
        gpu |= {"power_watts": 250, "processes": []}
        found = []
        for index in range(2):
            paused = index in self.fake.paused
            state = "paused" if paused else "shared"
            found.append(gpu | {"index": index, "paused": paused, "state": state})
        self.answer(200, {"gpus": found})

    def pause(self, node: str | None, index: str, deed: str) -> None:
        if int(index) > 1:
            self.refuse(404, "not_found", f"there is no GPU {index}")
            return
        (self.fake.paused.add if deed == "pause" else self.fake.paused.discard)(int(index))
        self.answer(200, {"node": node or "box", "index": int(index), "paused": deed == "pause"})

    def status(self) -> None:
        states = [job["state"] for job in self.fake.jobs.values()]
        self.answer(
            200,
            {
                "total_nodes": 1,
                "online_nodes": 1,
                "total_gpus": 2,
                "available_gpus": 0,
                "total_jobs": len(states),
                "running_jobs": states.count("running"),
                "scheduled_jobs": states.count("scheduled"),
                "pending_jobs": states.count("pending"),
                "queued_tasks": self.fake.queued_tasks or states.count("pending"),
            },
        )

    def make_tenant(self) -> None:
        tenant = {"id": self.body.get("id", f"tenant-{len(self.fake.tenants)}")} | self.body
        self.fake.tenants[tenant["id"]] = tenant
        self.answer(201, tenant)

    def tenant(self, name: str) -> None:
        found = self.fake.tenants.get(name)
        if found is None:
            self.refuse(404, "not_found", f"there is no tenant {name}")
        elif self.command == "DELETE":
            del self.fake.tenants[name]
            self.answer(200, {"status": "deleted"})
        else:
            found |= self.body or {}
            self.answer(200, found)


def fixed(body: Any) -> Any:
    return lambda handler: handler.answer(200, body)


NODE = {
    "id": "box",
    "state": "online",
    "gpus": 2,
    "free_gpus": 1,
    "running": 1,
    "cpu_cores": 64,
    "memory_mb": 65_536,
    "rack": "",
    "labels": {},
}
USAGE = {"usage": [{"tenant_id": "default", "user": USER, "gpu_hours": 1.5, "jobs": 3}]}
HEALTH = {"status": "healthy", "version": "0", "uptime_seconds": 3661, "checks": {"store": "ok"}}
VALIDATED = {
    "count": 1,
    "tasks": 1,
    "position": 1,
    "expected_start": None,
    "basis": "",
    "start_unknown": "job 1 comes before it and has no time limit of its own and no history",
    "expected_end": None,
    "end_unknown": "",
    "warnings": ["it becomes 2 members"],
    "status": "valid",
}
ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/jobs", Handler.submit),
    ("POST", "/jobs/bulk", Handler.submit),
    ("POST", "/jobs/validate", fixed(VALIDATED)),
    ("GET", "/jobs", lambda handler: handler.answer(200, handler.fake.listed(handler.query))),
    ("GET", r"/jobs/([^/]+)", Handler.show),
    ("PATCH", r"/jobs/([^/]+)", Handler.change),
    ("DELETE", r"/jobs/([^/]+)", Handler.cancel),
    ("POST", r"/jobs/([^/]+)/(hold|release|retry|resubmit)", Handler.act),
    ("POST", r"/jobs/([^/]+)/correct-usage", Handler.correct_usage),
    ("GET", r"/jobs/([^/]+)/explain", Handler.explain),
    ("GET", r"/jobs/([^/]+)/logs", Handler.log),
    (
        "GET",
        r"/jobs/([^/]+)/attempts",
        lambda handler, job_id: handler.answer(
            200, {"attempts": handler.fake.jobs[job_id].get("attempts", [])}
        ),
    ),
    ("GET", r"/jobs/[^/]+/tasks", fixed({"tasks": []})),
    ("GET", "/events", Handler.stream),
    ("GET", "/gpus", Handler.gpus),
    ("POST", r"/gpus/(?:([^/]+)/)?(\d+)/(pause|resume)", Handler.pause),
    ("GET", "/nodes", lambda handler: handler.answer(200, {"nodes": handler.fake.nodes})),
    ("GET", "/nodes/tokens", fixed({"tokens": []})),
    ("GET", "/nodes/keys", fixed({"keys": []})),
    ("GET", "/tokens", fixed({"tokens": []})),
    ("GET", "/notifications", fixed({"targets": []})),
    ("GET", "/usage", fixed(USAGE)),
    ("GET", "/health", fixed(HEALTH)),
    ("GET", "/metrics", fixed(b"gpu_scheduler_queue_size 3\n")),
    ("GET", "/cluster/status", Handler.status),
    (
        "GET",
        "/tenants",
        lambda handler: handler.answer(200, {"tenants": list(handler.fake.tenants.values())}),
    ),
    ("POST", "/tenants", Handler.make_tenant),
    *((method, r"/tenants/([^/]+)", Handler.tenant) for method in ("GET", "PATCH", "DELETE")),
]


@contextmanager
def a_server() -> Iterator[FakeServer]:
    """A server on its own socket, for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        fake = FakeServer(directory)
        handler = type("Bound", (Handler,), {"fake": fake})
        server = socketserver.ThreadingUnixStreamServer(fake.path, handler)
        server.daemon_threads = True
        Path(fake.path).chmod(0o666)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            with fake.changed:
                fake.closing = True
                fake.changed.notify_all()
            server.shutdown()
            thread.join()
            server.server_close()
