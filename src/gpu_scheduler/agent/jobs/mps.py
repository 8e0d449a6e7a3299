"""NVIDIA's Multi-Process Service for jobs that share a device: one daemon for a device and a user.

Work comes in, and goes out with the variables of the daemon that it shall use. The daemon is
started as the user of the first share, and told to quit after the last. Its server serves one user
only: a job of somebody else on the same device, or of several devices, is sliced by time. What uses
which daemon is kept in a file, so that it holds across restarts of the agent.
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

import structlog

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.jobs.environment import PLAIN_PATH, WHOLE_MILLI
from gpu_scheduler.agent.launcher.processes import all_pids, user_of
from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.work import Work, WorkDevice

PROGRAM = "nvidia-cuda-mps-control"
AUTO, ALWAYS, NEVER = "auto", "mps", "time_slicing"
START = 'exec "$1" -d </dev/null >/dev/null 2>&1'
COMMAND = 'printf "%s\\n" "$2" | "$1"'
OPEN = 0o755
PRIVATE = 0o700
Key = tuple[str, int]
log = structlog.get_logger("mps")


class MpsError(Exception):
    """The daemon cannot be had; the text says why."""


class CommandRunner(Protocol):
    """Who runs short commands as users: the launcher, as nobody should fork beside threads."""

    async def run_helper(
        self, argv: tuple[str, ...], environment: dict[str, str], who: tuple[int, int, str]
    ) -> None:
        """Run one, or raise `OrderRefused`."""
        ...


@dataclass(slots=True)
class Daemon:
    """One daemon: for which device and user, and the work that uses it."""

    device: str
    uid: int
    gid: int
    user: str
    directory: str
    works: list[Key] = field(default_factory=list)

    @property
    def pipe(self) -> str:
        """Where clients find it."""
        return f"{self.directory}/pipe"

    @property
    def log(self) -> str:
        """Where it says what happens."""
        return f"{self.directory}/log"

    @property
    def environment(self) -> dict[str, str]:
        """What daemon and clients must agree on; devices go by UUID, which is never remapped."""
        return {
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.log,
        }


class Mps:
    """All daemons of this node. `program` is None where the driver does not offer it."""

    def __init__(
        self,
        messenger: CommandRunner,
        *,
        program: str | None,
        sharing: str,
        place: Path,
        state: Path,
    ) -> None:
        """`place` is where users reach their daemons, `state` the file that remembers them."""
        self._messenger = messenger
        self._program = program
        self._sharing = sharing
        self._place = place
        self._state = state
        self._daemons = _recalled(state)
        self._lock = asyncio.Lock()

    async def join(self, work: Work) -> Work:
        """The work with what it needs to share its device, however that is done."""
        device = _shared_device(work)
        if device is None:
            return work
        daemon: Daemon | None = None
        if self._sharing != NEVER and _can_use_mps(work, device):
            async with self._lock:
                try:
                    daemon = await self._joined(work, device)
                except MpsError as error:
                    if self._sharing == ALWAYS:
                        raise
                    log.warning("no MPS, time is sliced", device=device.index, error=str(error))
        variables = {"TGPU_GPU_SHARING": NEVER if daemon is None else ALWAYS}
        if daemon is not None:
            variables |= daemon.environment
        return replace(work, environment={**work.environment, **variables})

    def is_used_by(self, key: Key) -> bool:
        """Tell whether some daemon serves this work."""
        return any(key in daemon.works for daemon in self._daemons.values())

    async def leave(self, key: Key) -> None:
        """The work is over; a daemon that nobody uses any more quits."""
        async with self._lock:
            await self._left(lambda known: known != key)

    async def keep_only(self, held: Iterable[Key]) -> None:
        """Nothing but this work is under way."""
        keys = set(held)
        async with self._lock:
            await self._left(lambda known: known in keys)

    # --- daemons

    async def _joined(self, work: Work, device: WorkDevice) -> Daemon | None:
        """The daemon of the device, if it is or can be this user's."""
        if self._program is None:
            if self._sharing == ALWAYS:
                raise MpsError(f"gpu.sharing is mps, and {PROGRAM} is not on the agent's PATH")
            return None
        key = (work.allocation_id, work.member)
        daemon = self._daemons.get(device.uuid)
        if daemon is not None and daemon.uid != work.uid:
            return None
        if daemon is None:
            directory = str(self._place / str(device.index))
            daemon = Daemon(device.uuid, work.uid, work.gid, work.user, directory)
        if not daemon.works or not await self._answers(daemon):
            await self._start(daemon)
        if key not in daemon.works:
            daemon.works.append(key)
        self._daemons[device.uuid] = daemon
        self._remember()
        return daemon

    async def _left(self, stays: Callable[[Key], bool]) -> None:
        changed = False
        for daemon in list(self._daemons.values()):
            works = [key for key in daemon.works if stays(key)]
            changed |= works != daemon.works
            daemon.works = works
            if not works:
                await self._quit(daemon)
                del self._daemons[daemon.device]
        if changed:
            self._remember()

    async def _start(self, daemon: Daemon) -> None:
        """As its user, for its device alone."""
        self._clean(daemon)
        self._make_directories(daemon)
        await self._tell(daemon, START, self._program or PROGRAM)
        if not await self._answers(daemon):
            raise MpsError(f"{PROGRAM} -d was started and does not answer; see {daemon.log}")

    def _make_directories(self, daemon: Daemon) -> None:
        """Pipe and log are the user's alone, in a directory that nobody else can change."""
        try:
            self._place.mkdir(mode=OPEN, exist_ok=True)
            self._place.chmod(OPEN)
            Path(daemon.directory).mkdir(mode=OPEN)
            for path in (daemon.pipe, daemon.log):
                Path(path).mkdir(mode=PRIVATE)
                if os.geteuid() == 0:
                    os.chown(path, daemon.uid, daemon.gid)
        except OSError as error:
            raise MpsError(f"its directory cannot be made: {error}") from error

    async def _answers(self, daemon: Daemon) -> bool:
        try:
            await self._tell(daemon, COMMAND, self._program or PROGRAM, "get_server_list")
        except MpsError:
            return False
        return True

    async def _quit(self, daemon: Daemon) -> None:
        """Ask it; what does not go is killed: nobody uses it any more."""
        try:
            await self._tell(daemon, COMMAND, self._program or PROGRAM, "quit")
        except MpsError as error:
            log.warning("an MPS daemon did not quit", device=daemon.device, error=str(error))
        self._clean(daemon)

    def _clean(self, daemon: Daemon) -> None:
        for pid in _left_over(daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(daemon.directory, ignore_errors=True)

    async def _tell(self, daemon: Daemon, script: str, *words: str) -> None:
        """Run the control program as the daemon's user."""
        argv = ("/bin/sh", "-c", script, "sh", *words)
        environment = {"PATH": PLAIN_PATH, **daemon.environment}
        try:
            await self._messenger.run_helper(
                argv, environment, (daemon.uid, daemon.gid, daemon.user)
            )
        except OrderRefused as error:
            what = words[-1] if len(words) > 1 else "-d"
            raise MpsError(f"{PROGRAM} {what}: {error}") from error

    def _remember(self) -> None:
        """On a full disk it is only remembered, which is better than no job at all."""
        form = [asdict(daemon) for daemon in self._daemons.values()]
        fresh = self._state.with_name(f"{self._state.name}.new")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(form), encoding="utf-8")
            fresh.replace(self._state)


def mps_for(config: AgentConfig, launcher: CommandRunner, *, is_real: bool) -> Mps:
    """Those of one agent. Devices that are not real have no driver, and so no service of it."""
    return Mps(
        launcher,
        program=shutil.which(PROGRAM) if is_real else None,
        sharing=config.sharing if is_real else NEVER,
        place=Path(config.scratch_dir).parent / "mps",
        state=Path(config.dir) / "mps.json",
    )


def _shared_device(work: Work) -> WorkDevice | None:
    """The first device of which the work has only a part."""
    parts = (d for d in work.devices if d.share_milli < WHOLE_MILLI and not d.mig_uuid)
    return next(parts, None)


def _can_use_mps(work: Work, device: WorkDevice) -> bool:
    """A client has one daemon, and one daemon here has one device; a container sees none."""
    return len(work.devices) == 1 and bool(device.uuid) and not work.image


def _left_over(daemon: Daemon) -> list[int]:
    """Processes of the service that were started for this daemon."""
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


def _recalled(state: Path) -> dict[str, Daemon]:
    """A file that makes no sense is like none."""
    try:
        form = json.loads(state.read_text(encoding="utf-8"))
        daemons = [
            Daemon(
                device=str(one["device"]),
                uid=int(one["uid"]),
                gid=int(one["gid"]),
                user=str(one["user"]),
                directory=str(one["directory"]),
                works=[(str(name), int(member)) for name, member in one["works"]],
            )
            for one in form
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {daemon.device: daemon for daemon in daemons}
