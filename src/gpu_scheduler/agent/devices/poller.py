"""Looking at the devices: as often as is set, and at once when a job is over.

A job is reported as over only when a look that began after its end finds nothing of it on any
device, so that its devices are free when the server hears that they are. What stays too long is
reported all the same, and the server sees it in the readings.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable

from gpu_scheduler.agent.devices.monitor import DeviceMonitor
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb

LEAST_PAUSE_S = 0.01
LOOK_AGAIN_S = 0.1


class DevicePoller:
    """One watcher, asked by one task at a time."""

    def __init__(
        self,
        watcher: DeviceMonitor,
        heard: Callable[[NodeReadings], None],
        changed: Callable[[NodeInventory], None] | None = None,
    ) -> None:
        """`heard` is told of every look, before anybody who waits for it.

        `changed` is told when devices have come or gone, before the next look at them.
        """
        self._watcher = watcher
        self._heard = heard
        self._changed = changed
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[NodeReadings]] = []

    async def run(self) -> None:
        """Look until cancelled."""
        interval_s = self._watcher.settings.monitor_interval_s
        must_find = False
        while True:
            self._asked.clear()
            waiting, self._waiting = self._waiting, []
            found = await asyncio.to_thread(self._watcher.find_again)
            if found is not None and self._changed is not None:
                self._changed(found)
            telemetry = await asyncio.to_thread(self._watcher.look)
            self._heard(telemetry)
            for answer in waiting:
                if not answer.done():
                    answer.set_result(telemetry)
            await asyncio.sleep(LEAST_PAUSE_S)
            if self._watcher.must_find and not must_find:
                must_find = True
                continue
            must_find = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._asked.wait()

    def look_again(self) -> None:
        """Somebody has changed the devices: look for all of them again."""
        self._watcher.ask_again()
        self._asked.set()

    def begin(self, indices: Iterable[int]) -> None:
        """Work of ours is about to use these devices."""
        self._watcher.begin(indices)

    def trust(self, order: pb.Trust) -> None:
        """Somebody has looked after a device."""
        self._watcher.trust(order.device, mark=order.mark, ago_s=order.ago_ms / 1000)
        self._asked.set()

    async def released(self, allocation_id: str, indices: Container[int]) -> bool:
        """Wait until nothing of it is on any device, and these have their memory back.

        False if that takes too long.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._watcher.settings.release_timeout_s
        while not _is_clear(await self._fresh(), allocation_id, indices):
            if clock() >= give_up:
                return False
            await asyncio.sleep(LOOK_AGAIN_S)
        return True

    async def _fresh(self) -> NodeReadings:
        """A look that has not begun yet."""
        answer: asyncio.Future[NodeReadings] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._asked.set()
        return await answer


def _is_clear(telemetry: NodeReadings, allocation_id: str, indices: Container[int]) -> bool:
    """Devices that cannot be read are not waited for."""
    if telemetry.problem:
        return True
    return not any(
        (reading.unexplained_mb and reading.index in indices)
        or any(process.allocation_id == allocation_id for process in reading.processes)
        for reading in telemetry.readings
    )
