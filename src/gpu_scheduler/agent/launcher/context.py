"""What every part of the launcher uses: event loop, journal, table of attempts, ways to fork.

`LauncherContext` holds these parts and makes no decision. `HelperCommands` runs short programs
beside the jobs: prolog, epilog, commands of a container engine. Nothing here waits.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable
from typing import Protocol

from gpu_scheduler.agent.cgroups import Cgroups
from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.directory_removal import DirectoryRemoval
from gpu_scheduler.agent.launcher.journal import Journal
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher.log_rotation import LogRotation
from gpu_scheduler.agent.launcher.loop import Arguments, Loop, Timer
from gpu_scheduler.agent.launcher.process_tracking import ProcessTracker
from gpu_scheduler.agent.launcher.scratch import DirectoryPool
from gpu_scheduler.agent.launcher_protocol import Key, Over, Report
from gpu_scheduler.agent.runners import runners
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.spawn.fork_server import ForkServer
from gpu_scheduler.agent.spawn.prefork_pool import PreforkPool
from gpu_scheduler.agent.spawn.spawner import Launch, Spawned, Spawner, read_refusal, send_go

MAX_OUTPUT_BYTES = 64 * 1024
KILLED_WAIT_MS = 5_000
"""A killed helper is waited for no longer than this; the kernel may never end it."""
HELPER_TIMEOUT_MS = 30_000

HelperDone = Callable[..., None]
"""Called with its own arguments, whether the helper succeeded, and its output or the error."""


class HelperCommands:
    """Runs short programs as children, each with a timeout."""

    def __init__(self, loop: Loop, spawner: Spawner, mark: str) -> None:
        self._loop = loop
        self._spawner = spawner
        self._mark = mark

    def launch(self, argv: tuple[str, ...], environment: dict[str, str]) -> Launch:
        """A command as the launcher's own user.

        Its mark keeps the processes that it leaves running from being taken for a job's.
        """
        return Launch(argv=argv, environment={**environment, "TGPU_HELPER": self._mark})

    def run(self, launch: Launch, timeout_ms: int, done: HelperDone, *arguments: object) -> int:
        """Start a helper; returns its pid, or 0 if it could not be started (`done` was called).

        Its output is captured if the launch has no log.
        """
        reader = -1
        try:
            if launch.log < 0:
                reader, launch.log = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(reader, False)
            child = self._spawner.fork_at_gate(launch)
        except OSError as error:
            for descriptor in (reader, launch.log):
                if descriptor >= 0:
                    os.close(descriptor)
            done(*arguments, False, str(error))
            return 0
        os.close(launch.log)
        send_go(child.gate)
        helper = _Helper(self._loop, child, reader, timeout_ms, (done, arguments))
        if reader >= 0:
            self._loop.add(reader, helper.read)
        self._loop.at_exit(child.pid, helper.on_exit)
        return child.pid

    def run_command(
        self, argv: tuple[str, ...], timeout_ms: int, done: HelperDone, *arguments: object
    ) -> None:
        """Run a program of ours as the launcher's own user."""
        launch = self.launch(argv, {"PATH": "/usr/bin:/bin"})
        self.run(launch, timeout_ms, done, *arguments)

    def run_engine(
        self,
        argv: tuple[str, ...],
        done: HelperDone,
        *arguments: object,
        timeout_ms: int = HELPER_TIMEOUT_MS,
    ) -> None:
        """Run a command of a container engine."""
        self.run(self.launch(argv, dict(os.environ)), timeout_ms, done, *arguments)


def ignore_result(ok: bool, output: str) -> None:
    """For helpers whose result does not matter."""
    del ok, output


class _Helper:
    """One helper that runs. Its `done` is called once."""

    def __init__(
        self,
        loop: Loop,
        child: Spawned,
        reader: int,
        timeout_ms: int,
        done: tuple[HelperDone, Arguments],
    ) -> None:
        self._loop = loop
        self._child = child
        self._reader = reader
        self._timeout_ms = timeout_ms
        self._done: tuple[HelperDone, Arguments] | None = done
        self._output = b""
        self._timed_out = False
        self._timer: Timer = loop.after(timeout_ms, self._kill)

    def read(self) -> None:
        try:
            part = os.read(self._reader, 65536)
        except BlockingIOError:
            return
        self._output = (self._output + part)[:MAX_OUTPUT_BYTES]
        if not part:
            self._loop.drop(self._reader)

    def _kill(self) -> None:
        self._timed_out = True
        processes.send_to_group(self._child.pid, signal.SIGKILL)
        processes.send([self._child.pid], signal.SIGKILL)
        self._timer = self._loop.after(KILLED_WAIT_MS, self._report_timeout)

    def _report_timeout(self) -> None:
        self._finish(False, f"it took longer than {self._timeout_ms / 1000:g} s")

    def on_exit(self, status: int) -> None:
        self._timer.cancel()
        refusal = read_refusal(self._child.gate)
        self._child.gate.close()
        if self._reader >= 0:
            self.read()
            self._loop.drop(self._reader)
            os.close(self._reader)
        code = os.waitstatus_to_exitcode(status)
        output = self._output.decode(errors="replace").strip()
        if self._timed_out:
            self._report_timeout()
        elif refusal:
            self._finish(False, refusal)
        elif code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self._finish(False, how + (f": {output}" if output else ""))
        else:
            self._finish(True, output)

    def _finish(self, ok: bool, output: str) -> None:
        if self._done is not None:
            (done, arguments), self._done = self._done, None
            self._loop.call(done, *arguments, ok, output)


class LauncherContext:
    """The parts that starting, stopping, cleanup and recovery share.

    `attempts` is the table of everything that was ordered and not forgotten. `report` sends a
    report to every connected agent. `mark` names this launcher in the environment of its jobs.
    """

    def __init__(
        self,
        directory: str,
        loop: Loop,
        fork_server: ForkServer | None,
        report: Callable[[Report], None],
        before_sync: Callable[[], None],
    ) -> None:
        self.directory = directory
        self.mark = f"{zlib.crc32(os.path.realpath(directory).encode()):08x}"
        self.boot = processes.boot_id()
        self.loop = loop
        self.report = report
        self.attempts: dict[Key, Attempt] = {}
        self.journal = Journal(os.path.join(directory, "attempts"), loop.call, before_sync)
        self.spawner = Spawner(fork_server, loop.call)
        if fork_server is not None:
            loop.at_exit(fork_server.pid, self.spawner.fork_server_died)
        self.tracker = ProcessTracker(loop, self.attempts, self.mark)
        self.helpers = HelperCommands(loop, self.spawner, self.mark)
        self.directories = DirectoryPool(DirectoryRemoval(self.helpers.run_command, loop.after))
        self.log_rotation = LogRotation(self.helpers.run_command)
        self.cgroups = Cgroups(directory)
        self.prefork = PreforkPool(self.cgroups, self.spawner, loop)
        self.runners = runners()

    def close_pidfd(self, attempt: Attempt) -> None:
        """Watch the process of an attempt no longer."""
        self.loop.drop(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1


class AttemptEvents(Protocol):
    """What the parts report about an attempt. The supervisor implements it and acts on it."""

    def start_failed(self, attempt: Attempt, reason: str) -> None:
        """The command never ran. Without a reason the process ended too early to give one."""

    def command_started(self, attempt: Attempt) -> None:
        """The command runs."""

    def main_process_ended(self, attempt: Attempt, ending: Ending) -> None:
        """The process whose end is the job's end is gone."""

    def cleanup_finished(self, attempt: Attempt, over: Over) -> None:
        """Nothing of the job is left on the node."""
