"""Children that wait inside control groups for a job to come.

Who moves into a group of v1 waits until every CPU has passed a quiet point: measured, 14 ms for one
group, most of the time from an order to the running command. So a few children move ahead of time,
into groups of all kinds that jobs have needed so far; a job that comes takes one, with its groups,
and only the limits have to be written. Where processes can begin in their groups (v2 alone) nobody
has to move, and so nobody waits.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from gpu_scheduler.agent.cgroups.groups import PREFIX, Group, Limits
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.spawn.spawner import Spawned, Spawner
from gpu_scheduler.agent.work import Work

MOST = 8
"""Enough for a full set of GPUs whose jobs all end at once."""
TOGETHER = 2
SOON_MS = 2
MOST_DEATHS = 3
REST_MS = 10_000
"""So many in a row have died before a job came: something keeps them from waiting, for a while."""


@dataclass(slots=True)
class Seat:
    """A child at its gate, and the groups that it is in or on its way into."""

    group: Group
    child: Spawned


class Seats:
    """Makes children that wait, and hands them out."""

    def __init__(self, limits: Limits, spawner: Spawner, loop: Loop) -> None:
        self._limits = limits
        self._spawner = spawner
        self._loop = loop
        self._wanted: tuple[str, ...] = ()
        self._free: list[Seat] = []
        self._leaving: list[Seat] = []
        self._name = f"{PREFIX}{now_ms():x}"
        self._number = 0
        self._under_way = 0
        self._refilling = False
        self._deaths = 0
        self._rests_until_ms = 0

    def take(self, work: Work) -> Seat | None:
        """One with the limits of this work, or None; an OSError leaves nothing behind."""
        needed = self._limits.slow_groups(work)
        if not needed:
            return None
        more = tuple(name for name in needed if name not in self._wanted)
        if more:
            self._let_go()
            self._wanted += more
        self._refill_soon()
        seat = next((seat for seat in self._free if seat.child.is_there()), None)
        if seat is None:
            return None
        self._free.remove(seat)
        self._deaths = 0
        try:
            self._limits.set(seat.group, self._wanted, work)
        except OSError:
            self.give_back(seat)
            raise
        return seat

    def give_back(self, seat: Seat) -> None:
        """It was not needed after all. Its groups have limits by now, so it ends."""
        seat.child.gate.close()
        self._leaving.append(seat)

    def remove_left(self) -> None:
        """Take away the groups of those whom a former launcher let wait."""
        self._limits.remove_left(not_of=self._name)

    def clear(self) -> None:
        """Nobody comes any more: the launcher ends."""
        self._let_go()
        for seat in self._leaving:
            # It would end by itself, but for one that somebody has stopped.
            with suppress(ProcessLookupError):
                os.kill(seat.child.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(seat.child.pid, 0)
            seat.group.remove()
        self._leaving = []

    def _refill_soon(self) -> None:
        """Not now: an order is on its way to a job."""
        if not self._refilling and now_ms() >= self._rests_until_ms:
            self._refilling = True
            self._loop.after(SOON_MS, self._refill)

    def _refill(self) -> None:
        self._refilling = False
        missing = MOST - len(self._free) - self._under_way
        for _ in range(min(TOGETHER, missing) if self._wanted else 0):
            self._make()
        if missing > TOGETHER and self._wanted:
            self._refill_soon()

    def _make(self) -> None:
        self._number += 1
        wanted = self._wanted
        try:
            group = self._limits.make(f"{self._name}-{self._number}", wanted)
        except OSError as error:
            self._died(f"no control group for it: {error}")
            return
        entrance = group.entrance()
        self._under_way += 1
        try:
            self._spawner.begin_waiting(
                group.join_files, entrance, lambda child: self._made(group, wanted, child)
            )
        finally:
            if entrance >= 0:
                os.close(entrance)

    def _made(self, group: Group, wanted: tuple[str, ...], child: Spawned | OSError) -> None:
        self._under_way -= 1
        if isinstance(child, OSError):
            group.remove()
            self._died(str(child))
            return
        seat = Seat(group, child)
        self._loop.at_exit(child.pid, lambda _: self._ended(seat))
        if wanted == self._wanted:
            self._free.append(seat)
        else:
            self.give_back(seat)

    def _ended(self, seat: Seat) -> None:
        """Told to, or for no reason of ours."""
        if seat in self._free:
            self._free.remove(seat)
            self._died(seat.child.said())
        elif seat in self._leaving:
            self._leaving.remove(seat)
        seat.child.gate.close()
        seat.group.remove()

    def _died(self, why: str) -> None:
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self._rests_until_ms = now_ms() + REST_MS
        own_log.warn(f"a child that waited for a job is gone: {why or 'no reason was told'}")

    def _let_go(self) -> None:
        """Their gates close, so they end, and then their groups go."""
        for seat in self._free:
            self.give_back(seat)
        self._free = []
