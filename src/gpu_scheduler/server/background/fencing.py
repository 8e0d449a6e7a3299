"""The fencing command: a program of the site confirms that a lost node is dead.

It may power the node off, or ask a management board or hypervisor. Exit code 0 means that nothing
runs on the node any more. Any other result means "unknown": the command is run again with back-off
for as long as the node is lost. Each run is logged and recorded as an event. Only the leader runs
the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from datetime import UTC, datetime

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import ConfirmDead, Record
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.settings.groups.cluster import NodeSettings
from gpu_scheduler.store.rows import EventRow, Write

LONGEST_RETRY_S = 3_600.0
MAX_LINE = 300
MAX_OUTPUT = 64 * 1024
CONFIRMED_BY = "the fencing command"
log = structlog.get_logger("fencing")


class Fencing:
    """Runs the command for every lost node, one run at a time per node."""

    def __init__(self, loop: Loop, settings: NodeSettings) -> None:
        """Subscribe to commits, to see nodes that become lost."""
        self._loop = loop
        self._settings = settings
        self._changed = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        loop.on_committed(self._on_commit)

    async def run(self) -> None:
        """Run until cancelled; without a command return at once."""
        if not self._settings.fencing_command:
            return
        try:
            while True:
                self._changed.clear()
                for node_id in self._loop.core.state.cluster.index.by_id:
                    if node_id not in self._running and self._lost_node(node_id) is not None:
                        self._running[node_id] = asyncio.create_task(self._fence(node_id))
                await self._changed.wait()
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_commit(self, writes: list[Write]) -> None:
        if any(isinstance(write, Node) and write.state is NodeState.LOST for write in writes):
            self._changed.set()

    def _lost_node(self, node_id: str) -> Node | None:
        """Return the node if it is lost."""
        resources = self._loop.core.state.cluster.index.by_id.get(node_id)
        if resources is None or resources.node.state is not NodeState.LOST:
            return None
        return resources.node

    async def _fence(self, node_id: str) -> None:
        """Run the command with back-off until the node is confirmed dead or is back."""
        wait_s = self._settings.fencing_retry_s
        run = 0
        try:
            while (node := self._lost_node(node_id)) is not None:
                run += 1
                code, output = await self._run_command(node)
                await self._record(node_id, run, code, output)
                if code == 0:
                    # Rejected if the node came back meanwhile: then it is not dead.
                    with contextlib.suppress(SchedulerError):
                        await self._loop.apply(ConfirmDead(node_id, CONFIRMED_BY, node.silent_ms))
                        return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_RETRY_S)
        finally:
            del self._running[node_id]
            # Check again: the node may have been back for a moment only.
            self._changed.set()

    async def _run_command(self, node: Node) -> tuple[int, str]:
        """Run the command once; return its exit code and its last line of output."""
        since = datetime.fromtimestamp(node.silent_ms / 1000, UTC).isoformat(timespec="seconds")
        variables = {
            "TGPU_NODE": node.id,
            "TGPU_NODE_ADDRESS": node.address,
            "TGPU_SILENT_SINCE": since,
        }
        try:
            child = Child(self._settings.fencing_command, {**os.environ, **variables})
        except OSError as error:
            return -1, f"cannot be run: {error.strerror}"
        try:
            async with asyncio.timeout(self._settings.fencing_timeout_s):
                code = await child.ended()
        except TimeoutError:
            return -1, f"took longer than {self._settings.fencing_timeout_s:g} s and was killed"
        finally:
            child.close()
        return code, _last_line(child.output)

    async def _record(self, node_id: str, run: int, code: int, output: str) -> None:
        write = log.info if code == 0 else log.warning
        write("fencing command finished", node=node_id, run=run, exit_code=code, output=output)
        data = (("exit_code", code), ("node", node_id), ("output", output), ("run", run))
        event = EventRow(at_ms=0, kind="node_fencing", data=data)
        with contextlib.suppress(SchedulerError):
            await self._loop.apply(Record((event,)))


class Child:
    """A command in its own session, and the last part of its output.

    It is started with posix_spawn, because a fork beside the threads of gRPC can crash the child.
    """

    def __init__(self, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        """Start it; raises OSError on failure."""
        self.output = b""
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)  # only our end; the command's end stays blocking
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
        self._exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._reader, self._read)
        loop.add_reader(self._handle, self._exited.set)

    async def ended(self) -> int:
        """Wait for its exit; return the exit code, or minus the signal."""
        await self._exited.wait()
        asyncio.get_running_loop().remove_reader(self._handle)
        self._read()
        return self._reap()

    def _reap(self) -> int:
        """Collect the exit status; the process has exited, so this does not block."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kill the command and its child processes if they still run, and free all resources."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._reader)
        loop.remove_reader(self._handle)
        os.close(self._reader)
        if not self._pid:
            os.close(self._handle)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        # A process blocked in the kernel dies much later; do not wait for it.
        loop.add_reader(self._handle, self._reap_later)

    def _reap_later(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._reap()

    def _read(self) -> None:
        """Read what is available; child processes may keep the pipe open."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reader, 65_536):
                self.output = (self.output + part)[-MAX_OUTPUT:]
            asyncio.get_running_loop().remove_reader(self._reader)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    text = lines[-1] if lines else ""
    return "".join(char if char.isprintable() else "?" for char in text)[:MAX_LINE]
