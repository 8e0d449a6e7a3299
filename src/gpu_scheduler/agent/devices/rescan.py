"""Devices that come and go while the agent runs.

The kernel's list of GPUs is looked at often, as that costs nothing; the driver is asked for all
devices again only when that list has changed, or somebody says so: a person, or a reading that
shows other MIG slices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from gpu_scheduler.agent.devices.inventory import DevicesUnreadable, Found

log = structlog.get_logger("agent")


class Rescan:
    """What was found last, and whether it may have changed."""

    def __init__(
        self, find: Callable[[], Found], found: Found, gpus: Callable[[], tuple[str, ...]]
    ) -> None:
        """`find` asks the driver, `gpus` the kernel."""
        self._find = find
        self._found = found
        self._gpus = gpus
        self._known = gpus()
        self._asked = False

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
        if gpus == self._known and not self._asked:
            return None
        self._asked = False
        try:
            found = self._find()
        except DevicesUnreadable as error:
            log.warning("devices have changed and cannot be read yet", error=str(error))
            return None
        self._known = gpus
        found = _with_known(found, self._found)
        if found == self._found:
            return None
        before, self._found = len(self._found.devices), found
        log.warning("devices have changed", before=before, now=len(found.devices))
        return found


def _with_known(found: Found, before: Found) -> Found:
    """A device that is there and does not say who it is stays as it was: its readings say why."""
    known = {device.index: device for device in before.devices}
    devices = tuple(
        device if device.uuid else known.get(device.index, device) for device in found.devices
    )
    return replace(found, devices=devices)
