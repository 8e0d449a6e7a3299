"""Devices that come and go while the agent runs.

The kernel's list of GPUs is looked at often, as that costs nothing; the driver is asked for all
devices again only when that list has changed, or somebody says so: a person, or a reading that
shows other MIG slices. Where there was none at all it is asked now and then, less and less often:
at boot the agent may have come before the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from gpu_scheduler.agent.devices.inventory import DevicesUnreadable, Found

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
log = structlog.get_logger("agent")


class Rescan:
    """What was found last, and whether it may have changed."""

    def __init__(
        self,
        find: Callable[[], Found],
        found: Found,
        gpus: Callable[[], tuple[str, ...]],
        *,
        seeks: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` asks the driver, `gpus` the kernel.

        With `seeks` a node without any device is looked at now and then, whatever the kernel says.
        """
        self._find = find
        self._found = found
        self._gpus = gpus
        self._known = gpus()
        self._asked = False
        self._seeks = seeks
        self._clock = clock
        self._pause_s = FIRST_PAUSE_S
        self._due_s = clock() + FIRST_PAUSE_S

    def ask(self) -> None:
        """Look at the next opportunity, whatever the kernel says."""
        self._asked = True

    @property
    def is_asked(self) -> bool:
        """Tell whether somebody waits for it."""
        return self._asked

    def look(self) -> Found | None:
        """What is there now, if that is not what was there; may take as long as a driver takes."""
        gpus = self._gpus()
        is_told = gpus != self._known or self._asked
        if not is_told and not self._is_due():
            return None
        self._pause(is_told)
        self._asked = False
        try:
            found = self._find()
        except DevicesUnreadable as error:
            if is_told:
                log.warning("devices have changed and cannot be read yet", error=str(error))
            return None
        self._known = gpus
        found = _with_known(found, self._found)
        if found == self._found:
            return None
        before, self._found = self._found, found
        if before.devices != found.devices:
            count = len(before.devices)
            log.warning("devices have changed", before=count, now=len(found.devices))
        return found

    def _is_due(self) -> bool:
        """There may be a driver by now, of which the kernel told before it could be asked."""
        return self._seeks and not self._found.devices and self._clock() >= self._due_s

    def _pause(self, is_told: bool) -> None:
        """Longer each time, unless something has happened: most nodes without GPUs stay so."""
        longer_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        self._pause_s = FIRST_PAUSE_S if is_told else longer_s
        self._due_s = self._clock() + self._pause_s


def _with_known(found: Found, before: Found) -> Found:
    """A device that is there and does not say who it is stays as it was: its readings say why."""
    known = {device.index: device for device in before.devices}
    devices = tuple(
        device if device.uuid else known.get(device.index, device) for device in found.devices
    )
    return replace(found, devices=devices)
