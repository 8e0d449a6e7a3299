"""One question to a replica of a service: can it be used? Empty if so, else what is wrong.

A command is run as the user of the job, in its directory and with its variables, among the job's
own processes as far as the host has control groups.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = ("127.0.0.1", "::1")
MOST_LINE = 4096
MOST_OUTPUT = 200
SPARE_MS = 5_000
Key = tuple[str, int]
"""Allocation id and member."""
CHILD = Path(__file__).with_name("check_child.py")
_RUNNERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="check")
"""Apart from the threads in which devices are read: commands that hang must not hold those up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
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


async def check(asked: Watched) -> str:
    """Ask once, for as long as the answer may take."""
    ask = {"http": _http, "tcp": _tcp, "command": _command}.get(asked.kind)
    if ask is None:
        return f"this agent cannot check by {asked.kind}; update it"
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


async def _tcp(asked: Watched) -> str:
    _, writer = await _connect(asked.port)
    writer.close()
    return ""


async def _http(asked: Watched) -> str:
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


async def _command(asked: Watched) -> str:
    """Run it in a process of its own that becomes the job's user first.

    Begun in a thread, where Python starts it without a copy of this process, which is large and
    has threads of gRPC.
    """
    return await asyncio.get_running_loop().run_in_executor(_RUNNERS, _run, asked)


def _run(asked: Watched) -> str:
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
