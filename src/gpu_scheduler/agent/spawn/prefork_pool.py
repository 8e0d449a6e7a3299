"""The pre-fork pool: children that wait inside control groups for the next job.

A process that moves into a v1 group waits for an RCU grace period on all CPUs: measured, 14 ms for
one group, most of the time from an order to the running command. So a few children move ahead of
time, into groups of all controllers that jobs have needed so far; a job takes one with its groups,
and only the limits have to be written. With v2 alone processes begin in their group, and no child
has to wait.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from gpu_scheduler.agent.cgroups import PREFIX, Cgroups, Group
from gpu_scheduler.agent.launcher.log_rotation import launcher_log
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.spawn.spawner import Spawned, Spawner

MAX_FREE = 8
"""Enough for the GPUs of a node whose jobs all end at once."""
REFILL_BATCH = 2
REFILL_AFTER_MS = 2
MAX_DEATHS = 3
PAUSE_MS = 10_000
"""After so many deaths in a row before a job came, no child is made for this time."""


@dataclass(slots=True)
class PreforkedChild:
    """A child at its gate, and the control groups that it is in or moves into."""

    group: Group
    child: Spawned


class PreforkPool:
    """Makes waiting children, and hands them out."""

    def __init__(self, cgroups: Cgroups, spawner: Spawner, loop: Loop) -> None:
        self._cgroups = cgroups
        self._spawner = spawner
        self._loop = loop
        self._controllers: tuple[str, ...] = ()
        self._free: list[PreforkedChild] = []
        self._ending: list[PreforkedChild] = []
        self._name = f"{PREFIX}{now_ms():x}"
        self._number = 0
        self._requested = 0
        self._refill_scheduled = False
        self._deaths = 0
        self._paused_until_ms = 0

    def take(self, work: Work) -> PreforkedChild | None:
        """A waiting child, with the limits of this work set, or None.

        OSError if the limits cannot be set; the child is given back then.
        """
        needed = self._cgroups.v1_controllers(work)
        if not needed:
            return None
        more = tuple(name for name in needed if name not in self._controllers)
        if more:
            self._end_all()
            self._controllers += more
        self._refill_soon()
        taken = next((one for one in self._free if one.child.is_alive()), None)
        if taken is None:
            return None
        self._free.remove(taken)
        self._deaths = 0
        try:
            self._cgroups.set_limits(taken.group, self._controllers, work)
        except OSError:
            self.give_back(taken)
            raise
        return taken

    def give_back(self, preforked: PreforkedChild) -> None:
        """It was not needed. Its groups have limits by now, so it ends."""
        preforked.child.gate.close()
        self._ending.append(preforked)

    def remove_old_groups(self) -> None:
        """Remove the groups of the children of a former launcher."""
        self._cgroups.remove_unused(PREFIX, keep=self._name)

    def clear(self) -> None:
        """End all children, when the launcher exits."""
        self._end_all()
        for preforked in self._ending:
            # It ends by itself, unless a signal has stopped it.
            with suppress(ProcessLookupError):
                os.kill(preforked.child.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(preforked.child.pid, 0)
            preforked.group.remove()
        self._ending = []

    def _refill_soon(self) -> None:
        """Not at once: first the order goes to its child."""
        if not self._refill_scheduled and now_ms() >= self._paused_until_ms:
            self._refill_scheduled = True
            self._loop.after(REFILL_AFTER_MS, self._refill)

    def _refill(self) -> None:
        self._refill_scheduled = False
        missing = MAX_FREE - len(self._free) - self._requested
        for _ in range(min(REFILL_BATCH, missing) if self._controllers else 0):
            self._make()
        if missing > REFILL_BATCH and self._controllers:
            self._refill_soon()

    def _make(self) -> None:
        self._number += 1
        controllers = self._controllers
        try:
            group = self._cgroups.make(f"{self._name}-{self._number}", controllers)
        except OSError as error:
            self._count_death(f"no control group for it: {error}")
            return
        directory = group.open_directory()
        self._requested += 1
        try:
            self._spawner.begin_waiting(group.join_files, directory, self._made, group, controllers)
        finally:
            if directory >= 0:
                os.close(directory)

    def _made(self, group: Group, controllers: tuple[str, ...], child: Spawned | OSError) -> None:
        self._requested -= 1
        if isinstance(child, OSError):
            group.remove()
            self._count_death(str(child))
            return
        preforked = PreforkedChild(group, child)
        self._loop.at_exit(child.pid, self._on_exit, preforked)
        if controllers == self._controllers:
            self._free.append(preforked)
        else:
            self.give_back(preforked)

    def _on_exit(self, preforked: PreforkedChild, status: int) -> None:
        """A child has ended before it got a job: the pool returned it, or it died."""
        del status
        if preforked in self._free:
            self._free.remove(preforked)
            self._count_death(preforked.child.read_refusal())
        elif preforked in self._ending:
            self._ending.remove(preforked)
        preforked.child.gate.close()
        preforked.group.remove()

    def _count_death(self, reason: str) -> None:
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            self._paused_until_ms = now_ms() + PAUSE_MS
        launcher_log.warning(f"a pre-forked child has died: {reason or 'no reason given'}")

    def _end_all(self) -> None:
        """Close the gates of all free children: they end, and then their groups are removed."""
        for preforked in self._free:
            self.give_back(preforked)
        self._free = []
