"""Asks the replicas of services on this node, again and again, whether they can be used.

Orders and what the launcher reports come in; facts about readiness and ports go out, each when it
is new. What is asked is kept in a file until the work is over, so that an agent that is started
again goes on asking.
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

import structlog

from gpu_scheduler.agent.work import Work
from gpu_scheduler.wire import agent_pb2 as pb

# --- One question to a replica of a service: can it be used? Empty if so, else what is wrong.
#
# A command is run as the user of the job, in its directory and with its variables, among the job's
# own processes as far as the host has control groups.

HERE = ("127.0.0.1", "::1")
MOST_LINE = 4096
MOST_OUTPUT = 200
SPARE_MS = 5_000
Key = tuple[str, int]
"""Allocation id and member."""
CHILD = Path(__file__).with_name("probe_child.py")
_RUNNERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="probe")
"""Apart from the threads in which devices are read: commands that hang must not hold those up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """One replica and how it is asked; `kind` is empty if nobody asks. `pid` is 0 until it runs."""

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
        """By what the work is known."""
        return self.allocation_id, self.member


async def probe(asked: ProbeTarget) -> str:
    """Ask once, for as long as the answer may take."""
    ask = {"http": _http, "tcp": _tcp, "command": _command}.get(asked.kind)
    if ask is None:
        return f"this agent cannot probe by {asked.kind}; update it"
    # A command is told to end by itself, and may take a moment for that.
    patience_ms = asked.timeout_ms + (SPARE_MS if asked.kind == "command" else 0)
    try:
        async with asyncio.timeout(patience_ms / 1000):
            return await ask(asked)
    except TimeoutError:
        return f"no answer within {asked.timeout_ms / 1000:g} s"
    except OSError as error:
        return error.strerror.lower() if error.strerror else str(error)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To whatever listens on the port, by the old or the new kind of address."""
    refused: OSError | None = None
    for host in HERE:
        try:
            return await asyncio.open_connection(host, port, limit=MOST_LINE)
        except OSError as error:
            refused = refused or error
    raise refused or OSError("no address")


async def _tcp(asked: ProbeTarget) -> str:
    _, writer = await _connect(asked.port)
    writer.close()
    return ""


async def _http(asked: ProbeTarget) -> str:
    reader, writer = await _connect(asked.port)
    try:
        request = (
            f"GET {asked.path} HTTP/1.1\r\nHost: localhost:{asked.port}\r\n"
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
        return f"GET {asked.path} was not answered by HTTP"
    status = int(words[1])
    return "" if 200 <= status < 400 else f"GET {asked.path} was answered with {status}"


async def _command(asked: ProbeTarget) -> str:
    """Run it in a process of its own that becomes the job's user first.

    Begun in a thread, where Python starts it without a copy of this process, which is large and
    has threads of gRPC.
    """
    return await asyncio.get_running_loop().run_in_executor(_RUNNERS, _run, asked)


def _run(asked: ProbeTarget) -> str:
    who = {
        "pid": asked.pid,
        "uid": asked.uid,
        "gid": asked.gid,
        "user": asked.user,
        "workdir": asked.workdir,
        "argv": list(asked.argv),
    }
    command = (sys.executable, "-I", "-S", str(CHILD), json.dumps(who))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the job's own command, with its user's rights
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(asked.environment),
            start_new_session=True,
        )
        try:
            code = process.wait(asked.timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            return f"no answer within {asked.timeout_ms / 1000:g} s"
        finally:
            # Also what it left behind, and all of it when its time is over.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not code:
            return ""
        output.seek(0)
        said = " ".join(output.read(MOST_OUTPUT).decode("utf-8", "replace").split())
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{asked.argv[0]} ended with {how}" + (f": {said}" if said else "")


# --- Asks the replicas of services on this node, again and again, whether they can be used.

NAME = "services.json"
BEFORE_READY_MS = 1_000
"""Until it is ready a replica is asked at least this often."""
log = structlog.get_logger("agent")


class ReadinessProber:
    """All replicas on this node."""

    def __init__(
        self, directory: Path, tell: Callable[[pb.Fact], None], now_ms: Callable[[], int]
    ) -> None:
        """Read what an agent before us has watched; nothing is asked before its work is held."""
        self._file = directory / NAME
        self._tell = tell
        self._now_ms = now_ms
        self._watched: dict[Key, ProbeTarget] = {found.key: found for found in _read(self._file)}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._told: dict[Key, pb.Fact] = {}

    def watch(self, order: pb.Order, work: Work) -> None:
        """This work will be a replica, if it is one."""
        start = order.start
        port = int(work.environment.get("TGPU_SERVICE_PORT", 0))
        if not port and not start.HasField("probe"):
            return
        watched = ProbeTarget(
            allocation_id=order.allocation_id,
            member=order.member,
            port=port,
            uid=work.uid,
            gid=work.gid,
            user=work.user,
            workdir=work.workdir,
        )
        if start.HasField("probe"):
            probe = start.probe
            is_command = probe.kind == "command"
            watched = replace(
                watched,
                kind=probe.kind,
                path=probe.path,
                argv=tuple(probe.argv),
                interval_ms=probe.interval_ms,
                timeout_ms=probe.timeout_ms,
                failures=probe.failures,
                grace_ms=probe.grace_ms,
                environment=tuple(sorted(work.environment.items())) if is_command else (),
            )
        self._watched[watched.key] = watched
        self._write()

    def began(self, key: Key, pid: int) -> None:
        """The work runs: ask it from now on."""
        watched = self._watched.get(key)
        if watched is None or key in self._tasks:
            return
        if pid and pid != watched.pid:
            watched = self._watched[key] = replace(watched, pid=pid)
            self._write()
        if not watched.kind:
            self._say(watched, is_ready=True)
            return
        self._say(watched, is_ready=False)
        self._tasks[key] = task = asyncio.create_task(self._ask(watched))
        task.add_done_callback(_note_failure)

    def over(self, key: Key) -> None:
        """Nothing of the work runs any more."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        self._told.pop(key, None)
        if self._watched.pop(key, None) is not None:
            self._write()

    def keep_only(self, held: Iterable[Key], starting: Iterable[Key]) -> None:
        """Nothing but this work is under way, or about to be."""
        for key in self._watched.keys() - {*held, *starting}:
            self.over(key)

    def facts(self) -> list[pb.Fact]:
        """How all replicas stand, for a server that may not know."""
        return list(self._told.values())

    async def _ask(self, watched: ProbeTarget) -> None:
        clock = asyncio.get_running_loop().time
        patient_until = clock() + watched.grace_ms / 1000
        is_ready, failures = False, 0
        complaint = ""
        while True:
            problem = await probe(watched)
            if not problem:
                failures, complaint = 0, ""
                if not is_ready:
                    is_ready = True
                    self._say(watched, is_ready=True)
            else:
                failures += 1
                if is_ready and failures >= watched.failures:
                    is_ready, complaint = False, problem
                    self._say(watched, is_ready=False, detail=problem)
                elif not is_ready and clock() >= patient_until and problem != complaint:
                    complaint = problem
                    self._say(watched, is_ready=False, detail=problem)
            pause_ms = watched.interval_ms
            if not is_ready:
                pause_ms = min(pause_ms, BEFORE_READY_MS)
            await asyncio.sleep(pause_ms / 1000)

    def _say(self, watched: ProbeTarget, *, is_ready: bool, detail: str = "") -> None:
        ready = pb.Ready(is_ready=is_ready, detail=detail, port=watched.port)
        fact = pb.Fact(
            at_ms=self._now_ms(),
            allocation_id=watched.allocation_id,
            member=watched.member,
            ready=ready,
        )
        self._told[watched.key] = fact
        self._tell(fact)

    def _write(self) -> None:
        """On a full disk it is only remembered. Environments can hold secrets: for us alone."""
        fresh = self._file.with_name(f"{NAME}.new")
        text = json.dumps([asdict(watched) for watched in self._watched.values()])
        with suppress(OSError):
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            fresh.replace(self._file)


def _read(file: Path) -> list[ProbeTarget]:
    """A file that makes no sense is like none: jobs come first."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return [
            ProbeTarget(
                **values
                | {
                    "argv": tuple(values["argv"]),
                    "environment": tuple((name, value) for name, value in values["environment"]),
                }
            )
            for values in known
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _note_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a replica is asked no more", error=str(error))
