"""What an agent asks of the machine that it runs on, apart from devices: its clocks,
its name and its accounts.

A protocol, so that one program can hold many agents whose machines differ.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

from gpu_scheduler.agent import room
from gpu_scheduler.agent.logins import Login, Logins

PATIENCE_S = 5.0
"""So long a disk may take to answer."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Machine(Protocol):
    """The clocks of a node, and which of its runs this is."""

    def wall_ms(self) -> int:
        """The time of day, which can be set."""
        ...

    def boot_ms(self) -> int:
        """Since the machine was started, also while it was suspended; it cannot be set."""
        ...

    def boot_id(self) -> str:
        """Names this run of the machine; empty if nobody knows."""
        ...

    def known_login(self, uid: int) -> Login | None:
        """The account of a uid, if that can be said without asking."""
        ...

    async def login(self, uid: int) -> Login:
        """The account of a uid; NoAnswer if nobody says."""
        ...

    async def trouble(self, directory: Path, *, is_suspect: bool) -> str:
        """Why nothing can be written there; one that is suspect is tried, not only asked."""
        ...


class ThisMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self._logins = Logins()
        self._look: asyncio.Task[str] | None = None

    def wall_ms(self) -> int:
        """The time of day."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Since the machine was started."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """Names this run of the machine."""
        try:
            return BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def known_login(self, uid: int) -> Login | None:
        """The account of a uid, if it was looked up a short time ago."""
        return self._logins.known(uid)

    async def login(self, uid: int) -> Login:
        """The account of a uid, also from a directory service."""
        return await self._logins.of(uid)

    async def trouble(self, directory: Path, *, is_suspect: bool) -> str:
        """Why nothing can be written there."""
        hangs = f"{directory} does not answer"
        if self._look is not None and not await _is_done(self._look):
            return hangs  # one more would only hang as well
        look = asyncio.to_thread(room.trouble, directory, is_suspect=is_suspect)
        self._look = task = asyncio.create_task(look)
        return task.result() if await _is_done(task) else hangs


async def _is_done(task: asyncio.Task[str]) -> bool:
    await asyncio.wait({task}, timeout=PATIENCE_S)
    return task.done()
