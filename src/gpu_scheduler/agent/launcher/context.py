"""What the parts of the launcher share."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable

from gpu_scheduler.agent.cgroups.groups import Limits
from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.journal import Journal
from gpu_scheduler.agent.launcher.leases import Leases
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.loop import Loop, Timer
from gpu_scheduler.agent.launcher.messages import Key
from gpu_scheduler.agent.launcher.process_tracking import Census
from gpu_scheduler.agent.launcher.scratch import Spares
from gpu_scheduler.agent.runners.registry import runners
from gpu_scheduler.agent.spawn.fork_server import Zygote
from gpu_scheduler.agent.spawn.prefork import Seats
from gpu_scheduler.agent.spawn.spawner import Launch, Spawner, refusal, say_go
from gpu_scheduler.agent.work import Report

# --- Short commands beside the jobs: prolog, epilog, and what a container engine has to be told.
#
# A command and a callback come in; the callback hears whether it went well and what it wrote.
# Nothing
# waits: a helper is a child like any other, and is killed when its time is over.

Done = Callable[[bool, str], None]
MOST_OUTPUT = 64 * 1024
GONE_MS = 5_000
"""So long one that was killed is waited for; the kernel may not let it go."""


class Errands:
    """Runs short programs for the launcher, each with a time limit, and tells how they ended."""

    def __init__(self, loop: Loop, spawner: Spawner) -> None:
        self._loop = loop
        self._spawner = spawner

    def run(self, launch: Launch, timeout_ms: int, done: Done) -> int:
        """Start one; its pid, or 0 if it could not be started (and `done` has been told).

        Its output is captured if the launch has no log.
        """
        reader = -1
        try:
            if launch.log < 0:
                reader, launch.log = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(reader, False)
            child = self._spawner.fork_at_gate(launch)
        except OSError as error:
            _close(reader, launch.log)
            done(False, str(error))
            return 0
        os.close(launch.log)
        say_go(child.gate)
        run = _Run(self._loop, child.pid, reader, done)
        run.timeout_ms = timeout_ms
        run.timer = self._loop.after(timeout_ms, run.out_of_time)
        run.refusal = lambda: refusal(child.gate) or ""
        run.close_gate = child.gate.close
        if reader >= 0:
            self._loop.add(reader, run.read)
        self._loop.at_exit(child.pid, run.ended)
        return child.pid


class _Run:
    """One errand that is under way."""

    def __init__(self, loop: Loop, pid: int, reader: int, done: Done) -> None:
        self._loop = loop
        self._pid = pid
        self._reader = reader
        self._done = done
        self._output = b""
        self._late = False
        self._is_told = False
        self.timeout_ms = 0
        self.timer: Timer | None = None
        self.refusal: Callable[[], str] = str
        self.close_gate: Callable[[], None] = lambda: None

    def read(self) -> None:
        try:
            part = os.read(self._reader, 65536)
        except BlockingIOError:
            return
        self._output = (self._output + part)[:MOST_OUTPUT]
        if not part:
            self._loop.drop(self._reader)

    def out_of_time(self) -> None:
        self._late = True
        processes.send_to_group(self._pid, signal.SIGKILL)
        processes.send([self._pid], signal.SIGKILL)
        self.timer = self._loop.after(GONE_MS, self._tell_late)

    def _tell_late(self) -> None:
        """Told once, when it has ended or does not end although it was killed."""
        if not self._is_told:
            self._is_told = True
            self._done(False, f"it took longer than {self.timeout_ms / 1000:g} s")

    def ended(self, status: int) -> None:
        if self.timer is not None:
            self.timer.cancel()
        refused = self.refusal()
        self.close_gate()
        if self._reader >= 0:
            self.read()
            self._loop.drop(self._reader)
            os.close(self._reader)
        code = os.waitstatus_to_exitcode(status)
        text = self._output.decode(errors="replace").strip()
        if self._late:
            self._tell_late()
        elif refused:
            self._done(False, refused)
        elif code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self._done(False, how + (f": {text}" if text else ""))
        else:
            self._done(True, text)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


# --- What the parts of the launcher share.

HELPER_TIMEOUT_MS = 30_000
REMOVE_TIMEOUT_MS = 60_000


class Kit:
    """The loop, the journal, the table of attempts, and the ways to look and act."""

    def __init__(self, directory: str, zygote: Zygote | None) -> None:
        self.directory = directory
        self.mark = f"{zlib.crc32(os.path.realpath(directory).encode()):08x}"
        self.loop = Loop()
        self.journal = Journal(os.path.join(directory, "attempts"))
        self.attempts: dict[Key, Attempt] = {}
        self.journal.call = self.loop.call
        self.spawner = Spawner(zygote)
        self.spawner.call = self.loop.call
        if zygote is not None:
            self.loop.at_exit(zygote.pid, lambda _: self.spawner.zygote_died())
        self.census = Census(self.loop, self.attempts, self.mark)
        self.errands = Errands(self.loop, self.spawner)
        self.spares = Spares(self._remove, self.loop.after)
        self.limits = Limits(directory)
        self.seats = Seats(self.limits, self.spawner, self.loop)
        self.leases = Leases(self.loop, directory, self.attempts, self.mark)
        self.runners = runners()
        self.boot = processes.boot_id()
        self.report: Callable[[Report], None] = lambda report: None  # noqa: ARG005 - nobody yet

    def helper_launch(self, argv: tuple[str, ...], environment: dict[str, str]) -> Launch:
        """A command as the launcher's own user. What it leaves running is not taken for a job's."""
        return Launch(argv=argv, environment={**environment, "TGPU_HELPER": self.mark})

    def tell_engine(
        self,
        argv: tuple[str, ...],
        done: Callable[[bool, str], None],
        timeout_ms: int = HELPER_TIMEOUT_MS,
    ) -> None:
        """Run a command of a container engine."""
        launch = self.helper_launch(argv, dict(os.environ))
        self.errands.run(launch, timeout_ms, done)

    def _remove(self, paths: list[str]) -> None:
        """Take directories away without waiting for it."""
        argv = ("rm", "-rf", "--", *paths)
        launch = self.helper_launch(argv, {"PATH": "/usr/bin:/bin"})
        self.errands.run(launch, REMOVE_TIMEOUT_MS, lambda *_: None)
