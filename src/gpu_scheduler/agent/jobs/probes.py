"""Readiness probes for the replicas of services on this node.

Start orders and launcher reports come in; facts about readiness and ports go out, each when it
changes. The targets are stored in a file until their work has ended, so that a restarted agent
continues to probe. A command probe runs as the user of the job, in its directory and with its
variables, inside the job's control groups where the host has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpu_scheduler.agent.launcher_protocol import Key, Work
from gpu_scheduler.agent.machine import replace_file
from gpu_scheduler.wire import agent_pb2 as pb

LOOPBACK = ("127.0.0.1", "::1")
MAX_LINE_BYTES = 4096
MAX_OUTPUT_BYTES = 200
COMMAND_EXTRA_MS = 5_000
"""A command has its own timeout; the outer one is this much longer."""
TARGETS_FILE = "services.json"
PROBE_FIELDS = ("kind", "path", "interval_ms", "timeout_ms", "failures", "grace_ms")
MAX_INTERVAL_BEFORE_READY_MS = 1_000
"""A replica that is not ready yet is probed at least this often."""
CHILD = Path(__file__).with_name("probe_child.py")
_EXECUTOR = ThreadPoolExecutor(max_workers=16, thread_name_prefix="probe")
"""Separate from the threads that read devices, which hanging commands must not block."""
log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """A replica and its probe. Without a probe `kind` is empty. `pid` is 0 until it runs.

    The field names are those of the file: rename none.
    """

    allocation_id: str
    member: int
    port: int
    kind: str = ""
    path: str = "/"
    argv: tuple[str, ...] = ()
    interval_ms: int = 5_000
    timeout_ms: int = 2_000
    failures: int = 3
    grace_ms: int = 60_000
    pid: int = 0
    uid: int = 0
    gid: int = 0
    user: str = ""
    workdir: str = "/"
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Key:
        return self.allocation_id, self.member


async def probe(target: ProbeTarget) -> str:
    """Probe a replica once. Empty if it is ready, else the problem."""
    probe_kind = {"http": _probe_http, "tcp": _probe_tcp, "command": _probe_command}.get(
        target.kind
    )
    if probe_kind is None:
        return f"this agent cannot probe by {target.kind}; update it"
    timeout_ms = target.timeout_ms + (COMMAND_EXTRA_MS if target.kind == "command" else 0)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await probe_kind(target)
    except TimeoutError:
        return f"no answer within {target.timeout_ms / 1000:g} s"
    except OSError as error:
        return error.strerror.lower() if error.strerror else str(error)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of this machine over IPv4 or IPv6."""
    first_error: OSError | None = None
    for host in LOOPBACK:
        try:
            return await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
        except OSError as error:
            first_error = first_error or error
    raise first_error or OSError("no address")


async def _probe_tcp(target: ProbeTarget) -> str:
    _, writer = await _connect(target.port)
    writer.close()
    return ""


async def _probe_http(target: ProbeTarget) -> str:
    reader, writer = await _connect(target.port)
    try:
        request = (
            f"GET {target.path} HTTP/1.1\r\nHost: localhost:{target.port}\r\n"
            "User-Agent: tgpu-readiness\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode("ascii"))
        await writer.drain()
        try:
            line = await reader.readline()
        except ValueError:
            line = b""
    finally:
        writer.close()
    words = line.decode("latin-1").split()
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        return f"GET {target.path} was not answered by HTTP"
    status = int(words[1])
    return "" if 200 <= status < 400 else f"GET {target.path} was answered with {status}"


async def _probe_command(target: ProbeTarget) -> str:
    """Run the command in a child process that first becomes the job's user.

    It is started in a thread with `subprocess`, which does not fork a copy of this large process
    with its gRPC threads.
    """
    return await asyncio.get_running_loop().run_in_executor(_EXECUTOR, _run_command, target)


def _run_command(target: ProbeTarget) -> str:
    spec = {
        "pid": target.pid,
        "uid": target.uid,
        "gid": target.gid,
        "user": target.user,
        "workdir": target.workdir,
        "argv": list(target.argv),
    }
    command = (sys.executable, "-I", "-S", str(CHILD), json.dumps(spec))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the job's own command, with its user's rights
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(target.environment),
            start_new_session=True,
        )
        try:
            code = process.wait(target.timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            return f"no answer within {target.timeout_ms / 1000:g} s"
        finally:
            # Kill the whole process group, also what a finished command left running.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not code:
            return ""
        output.seek(0)
        text = " ".join(output.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace").split())
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{target.argv[0]} ended with {how}" + (f": {text}" if text else "")


class ReadinessProber:
    """Probes all replicas on this node, each in a task of its own."""

    def __init__(
        self, directory: Path, send: Callable[[pb.Fact], None], now_ms: Callable[[], int]
    ) -> None:
        """Read the targets of an earlier agent; a probe starts when its work is reported."""
        self._file = directory / TARGETS_FILE
        self._send = send
        self._now_ms = now_ms
        self._targets: dict[Key, ProbeTarget] = {target.key: target for target in _read(self._file)}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._facts: dict[Key, pb.Fact] = {}

    def register(self, order: pb.Order, work: Work) -> None:
        """Store the probe of a start order, if the work is a replica of a service."""
        start = order.start
        port = int(work.environment.get("TGPU_SERVICE_PORT", 0))
        if not port and not start.HasField("probe"):
            return
        probe: dict[str, Any] = {}
        if start.HasField("probe"):
            probe = {name: getattr(start.probe, name) for name in PROBE_FIELDS}
            probe["argv"] = tuple(start.probe.argv)
            if start.probe.kind == "command":
                probe["environment"] = tuple(sorted(work.environment.items()))
        target = ProbeTarget(
            allocation_id=order.allocation_id,
            member=order.member,
            port=port,
            uid=work.uid,
            gid=work.gid,
            user=work.user,
            workdir=work.workdir,
            **probe,
        )
        self._targets[target.key] = target
        self._write()

    def start(self, key: Key, pid: int) -> None:
        """Start to probe work that runs; a replica without a probe is ready at once."""
        target = self._targets.get(key)
        if target is None or key in self._tasks:
            return
        if pid and pid != target.pid:
            target = self._targets[key] = replace(target, pid=pid)
            self._write()
        if not target.kind:
            self._report(target, is_ready=True)
            return
        self._report(target, is_ready=False)
        self._tasks[key] = task = asyncio.create_task(self._probe_repeatedly(target))
        task.add_done_callback(_log_failure)

    def stop(self, key: Key) -> None:
        """Stop probing work that has ended."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        self._facts.pop(key, None)
        if self._targets.pop(key, None) is not None:
            self._write()

    def keep_only(self, held: Iterable[Key], starting: Iterable[Key]) -> None:
        """Drop the targets of all other work."""
        for key in self._targets.keys() - {*held, *starting}:
            self.stop(key)

    def facts(self) -> list[pb.Fact]:
        """The last fact about each replica, for a server that may not know it."""
        return list(self._facts.values())

    async def _probe_repeatedly(self, target: ProbeTarget) -> None:
        """Report each change. Failures during the grace period are not reported."""
        clock = asyncio.get_running_loop().time
        grace_until = clock() + target.grace_ms / 1000
        is_ready, failures = False, 0
        reported_problem = ""
        while True:
            problem = await probe(target)
            if not problem:
                failures, reported_problem = 0, ""
                if not is_ready:
                    is_ready = True
                    self._report(target, is_ready=True)
            else:
                failures += 1
                if is_ready and failures >= target.failures:
                    is_ready, reported_problem = False, problem
                    self._report(target, is_ready=False, detail=problem)
                elif not is_ready and clock() >= grace_until and problem != reported_problem:
                    reported_problem = problem
                    self._report(target, is_ready=False, detail=problem)
            pause_ms = target.interval_ms
            if not is_ready:
                pause_ms = min(pause_ms, MAX_INTERVAL_BEFORE_READY_MS)
            await asyncio.sleep(pause_ms / 1000)

    def _report(self, target: ProbeTarget, *, is_ready: bool, detail: str = "") -> None:
        fact = pb.Fact(
            at_ms=self._now_ms(),
            allocation_id=target.allocation_id,
            member=target.member,
            ready=pb.Ready(is_ready=is_ready, detail=detail, port=target.port),
        )
        self._facts[target.key] = fact
        self._send(fact)

    def _write(self) -> None:
        """Write the file for its owner alone, as environments can contain secrets.

        On a full disk the targets stay in memory only.
        """
        with suppress(OSError):
            replace_file(self._file, json.dumps([asdict(one) for one in self._targets.values()]))


def _read(file: Path) -> list[ProbeTarget]:
    """The stored targets; an unreadable file counts as empty."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[ProbeTarget])
    except (OSError, msgspec.MsgspecError):
        return []


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a readiness probe stopped with an error", error=str(error))
