"""What an agent asks of the machine that it runs on, apart from devices: its clocks,
its name and its accounts.

A protocol, so that one program can hold many agents whose machines differ.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from gpu_scheduler.agent.logins import Login, Logins

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


class ThisMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self._logins = Logins()

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
