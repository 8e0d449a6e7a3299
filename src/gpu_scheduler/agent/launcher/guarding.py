"""The launcher's side of its guard: start it, wake it, start it again when it dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from gpu_scheduler.agent.launcher.loop import Loop
from gpu_scheduler.agent.launcher.own_log import own_log

AGAIN_MS = 1_000


class Guarding:
    """One guard, while any job has a lease; `needed` tells whether any has."""

    def __init__(self, loop: Loop, directory: str, mark: str, needed: Callable[[], bool]) -> None:
        self._loop = loop
        self._directory = directory
        self._mark = mark
        self._needed = needed
        self._pid = 0
        self._bell = -1

    def wake(self) -> None:
        """The leases have changed: let the guard look again. One that does not read is no harm."""
        if not self._pid:
            if self._needed():
                self._start()
            return
        try:
            os.write(self._bell, b".")
        except OSError:
            return

    def _start(self) -> None:
        """In a session of its own, and not taken for a job's: it has to outlive us."""
        heard, bell = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(bell, False)
        command = (sys.executable, "-I", "-m", "gpu_scheduler.agent.launcher.guard")
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [*command, "--dir", self._directory, "--mark", self._mark],
                {**os.environ, "TGPU_HELPER": self._mark},
                file_actions=[(os.POSIX_SPAWN_DUP2, heard, 0)],
                setsid=True,
            )
        except OSError as error:
            own_log.warn(f"cannot start the guard of leases: {error}")
            os.close(bell)
            self._loop.after(AGAIN_MS, self.wake)
            return
        finally:
            os.close(heard)
        self._bell = bell
        self._loop.at_exit(self._pid, self._ended)

    def _ended(self, status: int) -> None:
        del status
        os.close(self._bell)
        self._pid, self._bell = 0, -1
        if self._needed():
            own_log.warn("the guard of leases has died; another one is started")
            self._loop.after(AGAIN_MS, self.wake)
