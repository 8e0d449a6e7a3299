"""NVIDIA's Multi-Process Service for jobs that share a device: one daemon per device and user.

Work comes in, and goes out with the variables of the daemon that it uses. The daemon is started as
the user of the first share, and quits after the last. An MPS server serves one user only: a job of
another user on the same device, or a job with several devices, uses time slicing. The users of each
daemon are stored in a file, across restarts of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.jobs.environment import PLAIN_PATH, WHOLE_MILLI
from gpu_scheduler.agent.launcher.processes import all_pids, user_of
from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.launcher_protocol import Key, Work, WorkDevice
from gpu_scheduler.agent.machine import replace_file

PROGRAM = "nvidia-cuda-mps-control"
AUTO, ALWAYS, NEVER = "auto", "mps", "time_slicing"
START = 'exec "$1" "$2" </dev/null >/dev/null 2>&1'
COMMAND = 'printf "%s\\n" "$2" | "$1"'
PUBLIC_MODE = 0o755
PRIVATE_MODE = 0o700
log = structlog.get_logger("mps")


class MpsError(Exception):
    """The daemon cannot be used; the message says why."""


class CommandRunner(Protocol):
    """Runs short commands as users: the launcher, as the agent has threads and must not fork."""

    async def run_helper(
        self, argv: tuple[str, ...], environment: dict[str, str], account: tuple[int, int, str]
    ) -> None:
        """Run a command, or raise `OrderRefused`."""
        ...


@dataclass(slots=True)
class Daemon:
    """One daemon: its device and user, and the work that uses it. Fields are those of the file."""

    device: str
    uid: int
    gid: int
    user: str
    directory: str
    works: list[Key] = field(default_factory=list)

    @property
    def pipe(self) -> str:
        return f"{self.directory}/pipe"

    @property
    def log(self) -> str:
        return f"{self.directory}/log"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of daemon and clients; devices go by UUID, which is never remapped."""
        return {
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.log,
        }


class Mps:
    """All daemons of this node. `program` is None where the driver does not offer it."""

    def __init__(
        self,
        commands: CommandRunner,
        *,
        program: str | None,
        sharing: str,
        directory: Path,
        state: Path,
    ) -> None:
        """`directory` has the pipes and logs of the daemons, `state` is the file of their users."""
        self._commands = commands
        self._program = program
        self._sharing = sharing
        self._directory = directory
        self._state = state
        self._daemons = _load(state)
        self._lock = asyncio.Lock()

    async def attach(self, work: Work) -> Work:
        """The work with the variables that it needs to share its device, by MPS or time slicing."""
        parts = (d for d in work.devices if d.share_milli < WHOLE_MILLI and not d.mig_uuid)
        device = next(parts, None)
        if device is None:
            return work
        daemon: Daemon | None = None
        # A client has one daemon, and a daemon here has one device; a container cannot reach it.
        can_use_mps = len(work.devices) == 1 and bool(device.uuid) and not work.image
        if self._sharing != NEVER and can_use_mps:
            async with self._lock:
                try:
                    daemon = await self._attach_to_daemon(work, device)
                except MpsError as error:
                    if self._sharing == ALWAYS:
                        raise
                    log.warning("no MPS; using time slicing", device=device.index, error=str(error))
        variables = {"TGPU_GPU_SHARING": NEVER if daemon is None else ALWAYS}
        if daemon is not None:
            variables |= daemon.environment
        return replace(work, environment={**work.environment, **variables})

    def is_used_by(self, key: Key) -> bool:
        """Tell whether a daemon serves this work."""
        return any(key in daemon.works for daemon in self._daemons.values())

    async def detach(self, key: Key) -> None:
        """Remove ended work; a daemon without work quits."""
        async with self._lock:
            await self._retain(lambda known: known != key)

    async def keep_only(self, held: Iterable[Key]) -> None:
        """Remove all other work."""
        keys = set(held)
        async with self._lock:
            await self._retain(lambda known: known in keys)

    async def _attach_to_daemon(self, work: Work, device: WorkDevice) -> Daemon | None:
        """The daemon of the device, started if needed; None if it belongs to another user."""
        if self._program is None:
            if self._sharing == ALWAYS:
                raise MpsError(f"gpu.sharing is mps, and {PROGRAM} is not on the agent's PATH")
            return None
        key = (work.allocation_id, work.member)
        daemon = self._daemons.get(device.uuid)
        if daemon is not None and daemon.uid != work.uid:
            return None
        if daemon is None:
            directory = str(self._directory / str(device.index))
            daemon = Daemon(device.uuid, work.uid, work.gid, work.user, directory)
        if not daemon.works or not await self._answers(daemon):
            await self._start(daemon)
        if key not in daemon.works:
            daemon.works.append(key)
        self._daemons[device.uuid] = daemon
        self._store()
        return daemon

    async def _retain(self, keep: Callable[[Key], bool]) -> None:
        changed = False
        for daemon in list(self._daemons.values()):
            works = [key for key in daemon.works if keep(key)]
            changed |= works != daemon.works
            daemon.works = works
            if not works:
                await self._quit(daemon)
                del self._daemons[daemon.device]
        if changed:
            self._store()

    async def _start(self, daemon: Daemon) -> None:
        """Start a daemon as its user, for its device alone."""
        self._clean_up(daemon)
        self._make_directories(daemon)
        await self._run(daemon, START)
        if not await self._answers(daemon):
            raise MpsError(f"{PROGRAM} -d was started and does not answer; see {daemon.log}")

    def _make_directories(self, daemon: Daemon) -> None:
        """Only the user can access pipe and log; users cannot change the directory above them."""
        try:
            self._directory.mkdir(mode=PUBLIC_MODE, exist_ok=True)
            self._directory.chmod(PUBLIC_MODE)
            Path(daemon.directory).mkdir(mode=PUBLIC_MODE)
            for path in (daemon.pipe, daemon.log):
                Path(path).mkdir(mode=PRIVATE_MODE)
                if os.geteuid() == 0:
                    os.chown(path, daemon.uid, daemon.gid)
        except OSError as error:
            raise MpsError(f"its directory cannot be made: {error}") from error

    async def _answers(self, daemon: Daemon) -> bool:
        try:
            await self._run(daemon, COMMAND, "get_server_list")
        except MpsError:
            return False
        return True

    async def _quit(self, daemon: Daemon) -> None:
        """Ask the daemon to quit, then kill its remaining processes."""
        try:
            await self._run(daemon, COMMAND, "quit")
        except MpsError as error:
            log.warning("an MPS daemon did not quit", device=daemon.device, error=str(error))
        self._clean_up(daemon)

    def _clean_up(self, daemon: Daemon) -> None:
        for pid in _daemon_pids(daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(daemon.directory, ignore_errors=True)

    async def _run(self, daemon: Daemon, script: str, command: str = "-d") -> None:
        """Run the control program as the daemon's user."""
        argv = ("/bin/sh", "-c", script, "sh", self._program or PROGRAM, command)
        environment = {"PATH": PLAIN_PATH, **daemon.environment}
        try:
            await self._commands.run_helper(
                argv, environment, (daemon.uid, daemon.gid, daemon.user)
            )
        except OrderRefused as error:
            raise MpsError(f"{PROGRAM} {command}: {error}") from error

    def _store(self) -> None:
        """Write the file; on a full disk the state stays in memory only."""
        content = [asdict(daemon) for daemon in self._daemons.values()]
        with contextlib.suppress(OSError):
            replace_file(self._state, json.dumps(content))


def mps_for(config: AgentConfig, launcher: CommandRunner, *, is_real: bool) -> Mps:
    """The daemons of one agent. Simulated devices have no driver, and so no MPS."""
    return Mps(
        launcher,
        program=shutil.which(PROGRAM) if is_real else None,
        sharing=config.sharing if is_real else NEVER,
        directory=Path(config.scratch_dir).parent / "mps",
        state=Path(config.dir) / "mps.json",
    )


def _daemon_pids(daemon: Daemon) -> list[int]:
    """The MPS processes that were started for this daemon."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}".encode()
    found = []
    for pid in all_pids():
        try:
            name = Path(f"/proc/{pid}/comm").read_bytes()
            if not name.startswith(b"nvidia-cuda-mps") or user_of(pid) != daemon.uid:
                continue
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def _load(state: Path) -> dict[str, Daemon]:
    """The stored daemons; an unreadable file counts as empty."""
    try:
        daemons = msgspec.json.decode(state.read_bytes(), type=list[Daemon])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {daemon.device: daemon for daemon in daemons}
