"""Devices that are not there yet: at boot an agent may be up before the driver is.

Until a device was seen, the way to see them is chosen anew with each `find`; who asks how often
decides `Rescan`. From the first device on this source is the one that was chosen then.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.agent.devices.deadline import a_call_hangs
from gpu_scheduler.agent.devices.detect import Wanted, detect
from gpu_scheduler.agent.devices.inventory import DeviceSource, DevicesUnreadable, Found, Reading

SOUGHT = ("auto", "nvml", "nvidia-smi")


class Seeking:
    """A source that is chosen again for as long as it sees nothing."""

    def __init__(self, choose: Callable[[], DeviceSource]) -> None:
        """`choose` gives a source whose `find` has worked."""
        self._choose = choose
        self._source = choose()
        self._is_chosen = True

    def find(self) -> Found:
        """What is there now; a driver that hangs since the last time is not asked once more."""
        if not self._is_chosen:
            if a_call_hangs():
                raise DevicesUnreadable("the GPU driver has not answered an earlier question yet")
            self._source.close()
            self._source = self._choose()
        found = self._source.find()
        self._is_chosen = bool(found.devices)
        return found

    def read(self) -> list[Reading]:
        """What the devices say, if there are any."""
        return self._source.read()

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()


def seek(wanted: Wanted) -> DeviceSource:
    """The source to use; devices that can still come are looked for again."""
    is_declared = wanted.method == "auto" and wanted.declared
    if is_declared or wanted.method not in SOUGHT:
        return detect(wanted)
    return Seeking(lambda: detect(wanted))
