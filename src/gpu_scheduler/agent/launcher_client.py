"""The agent's client of the launcher, on the agent's event loop.

Values of `agent.work` go in, reports come out. Every order may be repeated: a launcher that dies is
started again, and it sends all unanswered orders again. A launcher of another version that
still has jobs is kept: it gets only the fields that it knows, and is replaced when it is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from gpu_scheduler import __version__
from gpu_scheduler.agent.launcher_protocol import (
    MAX_LINE_BYTES,
    PROTOCOL_1_FIELDS,
    Message,
    Over,
    Report,
    Work,
    decode_line,
    decode_over,
    decode_report,
    encode_line,
    encode_work,
    split_known_fields,
)

SOCKET = "launcher.sock"
LOG = "launcher.log"
ANSWER_SECONDS = 20.0
FIRST_VERSION = "0.0"
"""The version of a launcher that does not name one."""
HELPER_TIMEOUT_MS = 15_000
READ_BYTES = 1 << 18
RETRY_SECONDS = 0.02
MAX_RETRY_SECONDS = 1.0

LEAVE = encode_line({"n": 0, "do": "leave"})
Held = tuple[str, int, Over | None]


class OrderRefused(Exception):
    """The launcher has rejected an order; the text says why."""


class LauncherMissing(Exception):
    """No launcher answers, and none could be started; the text says where its log is."""


class Launcher:
    """The client of one launcher, which is found by its directory. Make it with `connect`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._pending: dict[int, tuple[Message, asyncio.Future[Message]]] = {}
        self._number = 0
        self._unsent = bytearray()
        self._flush_scheduled = False
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._child = 0
        self._sending_paused = False
        self._known_fields = PROTOCOL_1_FIELDS
        self._introduced = asyncio.Event()
        self.pid = 0
        self.version = __version__
        self.capabilities: dict[str, Any] = {}

    @classmethod
    async def connect(cls, directory: Path | str) -> Launcher:
        """Connect to the launcher of this directory, or start one that outlives us."""
        launcher = cls(Path(directory))
        reader = await launcher._open()
        launcher._reader_task = asyncio.create_task(launcher._read_and_reconnect(reader))
        return launcher

    async def close(self) -> None:
        """Disconnect. Launcher and jobs stay as they are."""
        await self._stop_reading()
        await self._disconnect()
        for _, answer in self._pending.values():
            answer.cancel()
        self._pending.clear()

    async def start(self, work: Work) -> None:
        """Start this work, unless it was started or stopped before. Returns when it is recorded."""
        await self._introduced.wait()
        encoded, unknown = split_known_fields(encode_work(work), self._known_fields)
        if unknown:
            raise OrderRefused(
                f"the launcher of this node is of version {self.version} and does not know "
                f"{', '.join(unknown)}; it is replaced when its jobs have ended"
            )
        await self._order({"do": "start", "work": encoded})

    async def stop(
        self, allocation_id: str, member: int, why: str, grace_ms: int | None = None
    ) -> None:
        """Stop it, with its own grace period or a shorter one; unstarted work never starts."""
        name = {"allocation_id": allocation_id, "member": member}
        await self._order({"do": "stop", **name, "why": why, "grace_ms": grace_ms})

    async def commit(
        self, allocation_id: str, member: int, environment: dict[str, str], files: dict[str, str]
    ) -> None:
        """Let prepared work run, with these variables and files; OrderRefused if it is too late."""
        name = {"allocation_id": allocation_id, "member": member}
        await self._order({"do": "commit", **name, "environment": environment, "files": files})

    async def warn(self, allocation_id: str, member: int, text: str) -> None:
        """Write a line into the log of a job."""
        order = {"do": "warn", "allocation_id": allocation_id, "member": member, "text": text}
        await self._order(order)

    @property
    def keeps_leases(self) -> bool:
        """Tell whether this launcher ends work by itself when its lease is over."""
        return "lease_ms" in self._known_fields

    async def renew(self, asked_ms: int) -> None:
        """The server has granted the leases that were requested at this CLOCK_BOOTTIME."""
        if self.keeps_leases:
            await self._order({"do": "renew", "asked_ms": asked_ms})

    @property
    def is_outdated(self) -> bool:
        """Tell whether the launcher is of another version than its agent."""
        return self.version != __version__

    async def replace_if_idle(self) -> bool:
        """Replace an idle launcher of another version by our own.

        Orders wait meanwhile, and go to the new one. False if the launcher still has work.
        """
        if self._pending or self._sending_paused or self._writer is None:
            return False
        answer = asyncio.create_task(self._order({"do": "held"}))
        await asyncio.sleep(0)
        self._flush()
        # From here on no start can reach it; a new connection ends the pause.
        self._sending_paused = True
        held = (await answer)["held"]
        if not held and self._sending_paused:
            self._introduced.clear()
            if self._writer is not None:
                self._writer.write(LEAVE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._introduced.wait()
        self._introduced.set()
        self._sending_paused = False
        self._flush()
        return not self.is_outdated

    async def run_helper(
        self, argv: tuple[str, ...], environment: dict[str, str], account: tuple[int, int, str]
    ) -> None:
        """Run a short command as a user (uid, gid, name); OrderRefused if it fails."""
        uid, gid, user = account
        command = {"argv": argv, "environment": environment, "uid": uid, "gid": gid, "user": user}
        await self._order({"do": "errand", **command, "timeout_ms": HELPER_TIMEOUT_MS})

    async def forget(self, allocation_id: str, member: int) -> None:
        """Its end is stored by the server: the launcher can drop its record."""
        await self._order({"do": "forget", "allocation_id": allocation_id, "member": member})

    async def held(self) -> list[Held]:
        """Everything that was started and not forgotten, with its end if it has one."""
        answer = await self._order({"do": "held"})
        return [
            (str(item["allocation_id"]), int(item["member"]), decode_over(item["over"]))
            for item in answer["held"]
        ]

    async def reports(self) -> AsyncIterator[Report]:
        """Reports as they come. After a reconnect, ends that were not forgotten come again."""
        while True:
            yield await self._reports.get()

    async def leave(self) -> None:
        """Ask the launcher to exit. Its jobs go on, and the next launcher takes them over."""
        await self._stop_reading()
        if self._child and self.pid not in {0, self._child}:
            # Our launcher waits for the lock of another one: it would start when that one exits.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        if self._writer is not None:
            self._writer.write(LEAVE)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
        await self.close()
        if self._child:
            child, self._child = self._child, 0
            await asyncio.to_thread(_reap, child)

    async def _stop_reading(self) -> None:
        reading, self._reader_task = self._reader_task, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _order(self, order: Message) -> Message:
        self._number += 1
        number = self._number
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = ({"n": number, **order}, answer)
        self._send(self._pending[number][0])
        try:
            found = await answer
        finally:
            self._pending.pop(number, None)
        if found.get("error"):
            raise OrderRefused(found["error"])
        return found

    def _send(self, order: Message) -> None:
        """Orders of one turn of the event loop are sent with one write."""
        self._unsent += _encode(order)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._writer is None or not self._unsent or self._sending_paused:
            return
        if not self._writer.is_closing():
            self._writer.write(bytes(self._unsent))
        # What a closing connection does not take is sent again on the next one.
        self._unsent.clear()

    async def _read_and_reconnect(self, reader: asyncio.StreamReader) -> None:
        """Read for ever; when the connection ends, connect to the next launcher."""
        while True:
            await self._read(reader)
            await self._disconnect()
            pause = RETRY_SECONDS
            while True:
                try:
                    reader = await self._open()
                    break
                except LauncherMissing:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_RETRY_SECONDS)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle complete lines until the connection ends; many come together."""
        partial = b""
        while True:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError:
                return
            *lines, rest = data.split(b"\n")
            if lines:
                lines[0] = partial + lines[0]
                partial = rest
                for text in lines:
                    self._handle(_decode(text))
            else:
                partial += rest
            if not data or len(partial) > MAX_LINE_BYTES:
                return

    def _handle(self, message: Message) -> None:
        if "report" in message:
            # Unknown kinds of reports from a later launcher are ignored.
            with contextlib.suppress(ValueError):
                self._reports.put_nowait(decode_report(message))
            return
        if "capabilities" in message:
            self.pid = int(message["pid"])
            self.capabilities = message["capabilities"]
            self.version = str(message.get("version", FIRST_VERSION))
            self._known_fields = frozenset(message.get("work_fields", PROTOCOL_1_FIELDS))
            self._introduced.set()
        order = self._pending.get(message.get("n") or 0)
        if order is not None and not order[1].done():
            order[1].set_result(message)

    async def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(ConnectionError, OSError):
                await writer.wait_closed()

    async def _open(self) -> asyncio.StreamReader:
        """Connect, and send all unanswered orders again."""
        reader, writer = await self._connect_or_start()
        self._writer = writer
        self._sending_paused = False
        self._unsent.clear()
        writer.write(encode_line({"n": 0, "do": "watch"}))
        for order, _ in self._pending.values():
            writer.write(encode_line(order))
        return reader

    async def _connect_or_start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = str(self._directory / SOCKET)
        deadline = asyncio.get_running_loop().time() + ANSWER_SECONDS
        started = False
        problem, pause = "", RETRY_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
            except (FileNotFoundError, ConnectionRefusedError):
                if not started or self._child_is_gone():
                    try:
                        self._start_launcher()
                        problem, started = "", True
                    except OSError as error:  # the machine is short of resources
                        problem, started = f", and none can be started: {error}", False
            except OSError as error:
                # Out of descriptors, perhaps: retry.
                problem = f": {error}"
            pause = min(2 * pause, MAX_RETRY_SECONDS) if problem else RETRY_SECONDS
            await asyncio.sleep(pause)
        raise LauncherMissing(
            f"no launcher answers at {path}{problem}; its log is {self._directory / LOG}"
        )

    def _child_is_gone(self) -> bool:
        """Reap a launcher of ours that has ended; one that we did not start is not our child."""
        if not self._child:
            return True
        try:
            gone = os.waitpid(self._child, os.WNOHANG)[0] != 0
        except ChildProcessError:
            gone = True
        if gone:
            self._child = 0
        return gone

    def _start_launcher(self) -> None:
        """Start it in a session of its own, with none of our descriptors: it must outlive us."""
        if not self._child_is_gone():
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._child = os.posix_spawn(
            sys.executable,
            [
                *(sys.executable, "-I", "-m", "gpu_scheduler.agent.launcher"),
                *("--dir", str(self._directory.absolute())),
            ],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._directory / LOG), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )


def _encode(order: Message) -> bytes:
    """Like `encode_line`, but fast; texts that are not UTF-8 need the slow way."""
    try:
        return msgspec.json.encode(order) + b"\n"
    except UnicodeEncodeError:
        return encode_line(order)


def _decode(text: bytes) -> Message:
    """Like `decode_line`, but fast."""
    try:
        message: Message = msgspec.json.decode(text, type=dict)
    except msgspec.DecodeError:
        return decode_line(text)
    return message


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
