"""What the parts of the launcher share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.attempt import Attempt
from gpu_scheduler.agent.launcher.census import Census
from gpu_scheduler.agent.launcher.errands import Errands
from gpu_scheduler.agent.launcher.forms import Key
from gpu_scheduler.agent.launcher.journal import Journal
from gpu_scheduler.agent.launcher.leases import Leases
from gpu_scheduler.agent.launcher.loop import Loop
from gpu_scheduler.agent.launcher.seats import Seats
from gpu_scheduler.agent.launcher.spares import Spares
from gpu_scheduler.agent.launcher.spawn import Launch, Spawner
from gpu_scheduler.agent.launcher.zygote import Zygote
from gpu_scheduler.agent.limits.groups import Limits
from gpu_scheduler.agent.runners.all import runners
from gpu_scheduler.agent.work import Report

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
