"""Whether work can begin on this node at all: not while its disk is full or broken.

Servers are told, and place work elsewhere until it is mended; what runs here is not touched. Work
that met the full disk before anybody knew of it is the node's failure and not its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_scheduler.agent.machine import Machine
from gpu_scheduler.agent.room import is_about_disk
from gpu_scheduler.agent.work import NOT_BEGUN, Over

log = structlog.get_logger("agent")


class Fitness:
    """Of one node. `unfit` says why no work can begin; empty if it can."""

    def __init__(self, machine: Machine, directory: Path, changed: Callable[[], None]) -> None:
        """`changed` is called when it has become fit or unfit."""
        self.unfit = ""
        self._machine = machine
        self._directory = directory
        self._changed = changed

    async def watch(self, every_s: float) -> None:
        """Look now and then, until cancelled: before any work has to find out."""
        while True:
            await self._look(is_suspect=bool(self.unfit))
            await asyncio.sleep(every_s)

    async def blame(self, over: Over) -> Over:
        """How work that could not begin ended: by the node, if that is so, to be tried again."""
        await self._look(is_suspect=True)
        if not self.unfit:
            return over
        return replace(over, stopped_by=NOT_BEGUN, detail=f"{over.detail}; {self.unfit}")

    async def _look(self, *, is_suspect: bool) -> None:
        unfit = await self._machine.trouble(self._directory, is_suspect=is_suspect)
        if unfit == self.unfit:
            return
        if unfit:
            log.warning("no work can begin here", reason=unfit)
        else:
            log.info("work can begin here again")
        self.unfit = unfit
        self._changed()


def may_be_the_disk(over: Over) -> bool:
    """Tell whether work could not begin for a reason that a disk can be to blame for."""
    is_refused = not over.ran and not over.stopped_by and not over.prolog_failed
    return is_refused and is_about_disk(over.detail)
