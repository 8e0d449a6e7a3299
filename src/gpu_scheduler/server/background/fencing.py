"""The fencing command: for every lost node a program of the site says whether it is dead.

It may power the node off, ask a management board, or a hypervisor. Exit code 0 means that nothing
runs there any more; everything else means that nobody knows, and it is asked again later, less and
less often, for as long as the node is lost. Each run stands in the log and among the events. Only
the leader runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from datetime import UTC, datetime

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import ConfirmDead, Record
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.settings.groups.cluster import NodeSettings
from gpu_scheduler.store.rows import EventRow, Write

LONGEST_WAIT_S = 3_600.0
MOST_WORDS = 300
MOST_OUTPUT = 64 * 1024
BY = "the fencing command"
log = structlog.get_logger("fencing")


class Fencing:
    """Looks after all lost nodes of one loop, one run at a time for each."""

    def __init__(self, loop: Loop, settings: NodeSettings) -> None:
        """Listen for nodes that become lost."""
        self._loop = loop
        self._settings = settings
        self._changed = asyncio.Event()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        loop.on_committed(self._note)

    async def run(self) -> None:
        """Work until cancelled; without a command there is nothing to do."""
        if not self._settings.fencing_command:
            return
        try:
            while True:
                self._changed.clear()
                for node in self._nodes():
                    if node.state is NodeState.LOST and node.id not in self._under_way:
                        self._under_way[node.id] = asyncio.create_task(self._look_after(node.id))
                await self._changed.wait()
        finally:
            tasks = list(self._under_way.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _note(self, writes: list[Write]) -> None:
        if any(isinstance(write, Node) and write.state is NodeState.LOST for write in writes):
            self._changed.set()

    async def _look_after(self, node_id: str) -> None:
        try:
            await self._fence(node_id)
        finally:
            del self._under_way[node_id]
            # It may have been back for a moment only.
            self._changed.set()

    def _nodes(self) -> Iterable[Node]:
        return [resources.node for resources in self._loop.core.state.cluster.index.by_id.values()]

    def _lost(self, node_id: str) -> Node | None:
        found = [node for node in self._nodes() if node.id == node_id]
        return found[0] if found and found[0].state is NodeState.LOST else None

    async def _fence(self, node_id: str) -> None:
        """Ask about one node until it is known, or the node is back."""
        wait_s = self._settings.fencing_retry_s
        run = 0
        while (node := self._lost(node_id)) is not None:
            run += 1
            code, words = await self._ask(node)
            await self._record(node_id, run, code, words)
            if code == 0:
                # Refused if the node came back meanwhile: then it is not dead, whoever says so.
                with contextlib.suppress(SchedulerError):
                    await self._loop.apply(ConfirmDead(node_id, BY, node.silent_ms))
                    return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _ask(self, node: Node) -> tuple[int, str]:
        """Run the command once: its exit code and its last words."""
        since = datetime.fromtimestamp(node.silent_ms / 1000, UTC).isoformat(timespec="seconds")
        told = {
            "TGPU_NODE": node.id,
            "TGPU_NODE_ADDRESS": node.address,
            "TGPU_SILENT_SINCE": since,
        }
        try:
            child = Child(self._settings.fencing_command, {**os.environ, **told})
        except OSError as error:
            return -1, f"cannot be run: {error.strerror}"
        try:
            async with asyncio.timeout(self._settings.fencing_timeout_s):
                code = await child.ended()
        except TimeoutError:
            return -1, f"took longer than {self._settings.fencing_timeout_s:g} s and was killed"
        finally:
            child.close()
        return code, _last_words(child.output)

    async def _record(self, node_id: str, run: int, code: int, words: str) -> None:
        say = log.info if code == 0 else log.warning
        say("fencing command was run", node=node_id, run=run, exit_code=code, output=words)
        data = (("exit_code", code), ("node", node_id), ("output", words), ("run", run))
        event = EventRow(at_ms=0, kind="node_fencing", data=data)
        with contextlib.suppress(SchedulerError):
            await self._loop.apply(Record((event,)))


class Child:
    """A command in a session of its own, and the last of what it wrote.

    By posix_spawn: a fork beside the threads of gRPC can end in a crash of the child.
    """

    def __init__(self, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        """Start it; OSError if that cannot be."""
        self.output = b""
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)  # our end only: the command may write as it likes
        try:
            self._pid = os.posix_spawnp(
                argv[0],
                argv,
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, writer, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE],
            )
        except OSError:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)
        self._handle = os.pidfd_open(self._pid)
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._reader, self._read)
        loop.add_reader(self._handle, self._over.set)

    async def ended(self) -> int:
        """Wait for its end: its exit code, or minus the signal."""
        await self._over.wait()
        asyncio.get_running_loop().remove_reader(self._handle)
        self._read()
        return self._bury()

    def _bury(self) -> int:
        """It has ended, so that takes no time."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Leave nothing: what still runs is killed, with all that it has started."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._reader)
        loop.remove_reader(self._handle)
        os.close(self._reader)
        if not self._pid:
            os.close(self._handle)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        # One that hangs in the kernel dies much later, and nobody may wait for that.
        loop.add_reader(self._handle, self._bury_late)

    def _bury_late(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._bury()

    def _read(self) -> None:
        """All there is; whoever has inherited the pipe may keep it open for as long as it likes."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reader, 65_536):
                self.output = (self.output + part)[-MOST_OUTPUT:]
            asyncio.get_running_loop().remove_reader(self._reader)


def _last_words(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    text = lines[-1] if lines else ""
    return "".join(char if char.isprintable() else "?" for char in text)[:MOST_WORDS]
