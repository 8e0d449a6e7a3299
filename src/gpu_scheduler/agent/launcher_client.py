"""Talking to the launcher from the agent's event loop.

Values of `agent.work` go in, reports come out. Every order may be repeated, so a launcher that dies
is started again and asked once more for all that it has not answered. It may be of another version,
with jobs that it has to see to their ends: then it is told what it knows, and replaced when it has
nothing left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec

from gpu_scheduler import __version__
from gpu_scheduler.agent.launcher.messages import (
    MAX_LINE_BYTES,
    PROTOCOL_1_FIELDS,
    Message,
    decode_line,
    decode_over,
    decode_report,
    encode_line,
    encode_work,
    split_known_fields,
)
from gpu_scheduler.agent.work import Over, Report, Work

SOCKET = "launcher.sock"
LOG = "launcher.log"
ANSWER_SECONDS = 20.0
FIRST_VERSION = "0.0"
"""Of a launcher that does not say which it is."""
ERRAND_MS = 15_000
PART_BYTES = 1 << 18
RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 1.0

Held = tuple[str, int, Over | None]


class OrderRefused(Exception):
    """The launcher has read an order and will not follow it; the text says why."""


class LauncherMissing(Exception):
    """No launcher answers, and none could be started; the text says where its log is."""


class Launcher:
    """One launcher, found or started by its directory. Make it with `connect`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._answers: dict[int, tuple[Message, asyncio.Future[Message]]] = {}
        self._number = 0
        self._unsent = bytearray()
        self._sending = False
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._child = 0
        self._holds_back = False
        self._known_fields = PROTOCOL_1_FIELDS
        self._introduced = asyncio.Event()
        self.pid = 0
        self.version = __version__
        self.capabilities: dict[str, Any] = {}

    @classmethod
    async def connect(cls, directory: Path | str) -> Launcher:
        """Find the launcher of this directory, or start one that outlives us."""
        launcher = cls(Path(directory))
        reader = await launcher._open()
        launcher._keeper = asyncio.create_task(launcher._keep(reader))
        return launcher

    async def close(self) -> None:
        """Hang up. Launcher and jobs stay as they are."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._hang_up()
        for _, answer in self._answers.values():
            answer.cancel()
        self._answers.clear()

    async def start(self, work: Work) -> None:
        """Start this work, unless it was started or stopped before. Returns when it is recorded."""
        await self._introduced.wait()
        form, unknown = split_known_fields(encode_work(work), self._known_fields)
        if unknown:
            raise OrderRefused(
                f"the launcher of this node is of version {self.version} and does not know "
                f"{', '.join(unknown)}; it is replaced when its jobs have ended"
            )
        await self._ask({"do": "start", "work": form})

    async def start_many(self, works: Iterable[Work]) -> None:
        """Start all of these; they travel in one write and are recorded together."""
        await asyncio.gather(*(self.start(work) for work in works))

    async def stop(
        self, allocation_id: str, member: int, why: str, grace_ms: int | None = None
    ) -> None:
        """Stop it, with its own grace or a shorter one; what has not begun never will."""
        await self._ask(
            {
                "do": "stop",
                "allocation_id": allocation_id,
                "member": member,
                "why": why,
                "grace_ms": grace_ms,
            }
        )

    async def commit(
        self, allocation_id: str, member: int, environment: dict[str, str], files: dict[str, str]
    ) -> None:
        """Let prepared work run, with these variables and files; refused if it waits no more."""
        name = {"allocation_id": allocation_id, "member": member}
        await self._ask({"do": "commit", **name, "environment": environment, "files": files})

    async def warn(self, allocation_id: str, member: int, text: str) -> None:
        """Write a line into the log of a job."""
        order = {"do": "warn", "allocation_id": allocation_id, "member": member, "text": text}
        await self._ask(order)

    @property
    def keeps_leases(self) -> bool:
        """Tell whether this launcher ends work by itself whose lease is over."""
        return "lease_ms" in self._known_fields

    async def renew(self, asked_ms: int) -> None:
        """What was asked for at this time, by CLOCK_BOOTTIME, was granted: leases begin anew."""
        if self.keeps_leases:
            await self._ask({"do": "renew", "asked_ms": asked_ms})

    @property
    def is_outdated(self) -> bool:
        """Tell whether the launcher is of another version than its agent."""
        return self.version != __version__

    async def replace_if_idle(self) -> bool:
        """Let our own launcher take the place of one of another version that holds nothing.

        Orders wait meanwhile, and go to the new one. False if it has something to see to its end.
        """
        if self._answers or self._holds_back or self._writer is None:
            return False
        asked = asyncio.create_task(self._ask({"do": "held"}))
        await asyncio.sleep(0)
        self._flush()
        # From here on nothing is started behind its back; a new connection ends that.
        self._holds_back = True
        held = (await asked)["held"]
        if not held and self._holds_back:
            self._introduced.clear()
            self._tell_to_leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._introduced.wait()
        self._introduced.set()
        self._holds_back = False
        self._flush()
        return not self.is_outdated

    async def errand(
        self, argv: tuple[str, ...], environment: dict[str, str], who: tuple[int, int, str]
    ) -> None:
        """Run a short command as a user (uid, gid, name); refused if it does not end well."""
        uid, gid, user = who
        form = {"argv": argv, "environment": environment, "uid": uid, "gid": gid, "user": user}
        await self._ask({"do": "errand", **form, "timeout_ms": ERRAND_MS})

    async def forget(self, allocation_id: str, member: int) -> None:
        """Its end is known and kept elsewhere: it need not be told again."""
        await self._ask({"do": "forget", "allocation_id": allocation_id, "member": member})

    async def held(self) -> list[Held]:
        """Everything that was started and not forgotten, with its end if it has one."""
        answer = await self._ask({"do": "held"})
        return [
            (str(item["allocation_id"]), int(item["member"]), decode_over(item["over"]))
            for item in answer["held"]
        ]

    async def reports(self) -> AsyncIterator[Report]:
        """Reports as they come. After a reconnection, ends that were not forgotten come again."""
        while True:
            yield await self._reports.get()

    async def leave(self) -> None:
        """Ask the launcher to end, once. Its jobs go on, and the next launcher finds them."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self._child and self.pid not in {0, self._child}:
            # It came second and waits for the lock: it would begin when the first has left.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        if self._tell_to_leave() and self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
        await self.close()
        if self._child:
            child, self._child = self._child, 0
            await asyncio.to_thread(_bury, child)

    def _tell_to_leave(self) -> bool:
        if self._writer is None:
            return False
        self._writer.write(encode_line({"n": 0, "do": "leave"}))
        return True

    async def _ask(self, order: Message) -> Message:
        self._number += 1
        number = self._number
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = ({"n": number, **order}, answer)
        self._send(self._answers[number][0])
        try:
            found = await answer
        finally:
            self._answers.pop(number, None)
        if found.get("error"):
            raise OrderRefused(found["error"])
        return found

    def _send(self, order: Message) -> None:
        """Orders given in one turn of the event loop leave in one write."""
        self._unsent += _encoded(order)
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._sending = False
        if self._writer is None or not self._unsent or self._holds_back:
            return
        if not self._writer.is_closing():
            self._writer.write(bytes(self._unsent))
        # What a closing connection does not take is asked again on the next one.
        self._unsent.clear()

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        """Read for ever; when the launcher is gone, find or start the next."""
        while True:
            await self._read(reader)
            await self._hang_up()
            pause = RETRY_SECONDS
            while True:
                try:
                    reader = await self._open()
                    break
                except LauncherMissing:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """All whole lines, as they come; many come together."""
        partial = b""
        while True:
            try:
                data = await reader.read(PART_BYTES)
            except ConnectionError:
                return
            *lines, rest = data.split(b"\n")
            if lines:
                lines[0] = partial + lines[0]
                partial = rest
                for text in lines:
                    self._heard(_decoded(text))
            else:
                partial += rest
            if not data or len(partial) > MAX_LINE_BYTES:
                return

    def _heard(self, form: Message) -> None:
        if "report" in form:
            # A kind that a later launcher has, and that nobody here asked for, is passed over.
            with contextlib.suppress(ValueError):
                self._reports.put_nowait(decode_report(form))
            return
        if "capabilities" in form:
            self.pid = int(form["pid"])
            self.capabilities = form["capabilities"]
            self.version = str(form.get("version", FIRST_VERSION))
            self._known_fields = frozenset(form.get("work_fields", PROTOCOL_1_FIELDS))
            self._introduced.set()
        order = self._answers.get(form.get("n") or 0)
        if order is not None and not order[1].done():
            order[1].set_result(form)

    async def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(ConnectionError, OSError):
                await writer.wait_closed()

    async def _open(self) -> asyncio.StreamReader:
        """Connect, start a launcher if none answers, and ask again what has no answer yet."""
        reader, writer = await self._reach()
        self._writer = writer
        self._holds_back = False
        self._unsent.clear()
        writer.write(encode_line({"n": 0, "do": "watch"}))
        for order, _ in self._answers.values():
            writer.write(encode_line(order))
        return reader

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = str(self._directory / SOCKET)
        give_up = asyncio.get_running_loop().time() + ANSWER_SECONDS
        started = False
        problem, pause = "", RETRY_SECONDS
        while asyncio.get_running_loop().time() < give_up:
            try:
                return await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
            except (FileNotFoundError, ConnectionRefusedError):
                if not started or self._child_is_gone():
                    problem = self._try_to_start()
                    started = not problem
            except OSError as error:
                # Out of descriptors, perhaps. It must not end whoever waits for the launcher.
                problem = f": {error}"
            pause = min(2 * pause, LONGEST_RETRY_SECONDS) if problem else RETRY_SECONDS
            await asyncio.sleep(pause)
        raise LauncherMissing(
            f"no launcher answers at {path}{problem}; what it said is in {self._directory / LOG}"
        )

    def _try_to_start(self) -> str:
        """Start a launcher; what went wrong, as a machine can be short of anything for a while."""
        try:
            self._start_launcher()
        except OSError as error:
            return f", and none can be started: {error}"
        return ""

    def _child_is_gone(self) -> bool:
        """Bury a launcher of ours that has ended; one that we did not start is not our child."""
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
        """In a session of its own, with nothing of ours open: it must outlive us."""
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


def _encoded(order: Message) -> bytes:
    """Like `encode_line`, but fast; it does not know texts that are no UTF-8."""
    try:
        return msgspec.json.encode(order) + b"\n"
    except UnicodeEncodeError:
        return encode_line(order)


def _decoded(text: bytes) -> Message:
    """Like `decode_line`, but fast."""
    try:
        form: Message = msgspec.json.decode(text, type=dict)
    except msgspec.DecodeError:
        return decode_line(text)
    return form


def _bury(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
