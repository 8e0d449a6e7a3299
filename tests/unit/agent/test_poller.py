"""Device readings on demand, and job ends that wait until the devices are free."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from gpu_scheduler.agent.devices.monitor import DeviceMonitor, DevicePoller, MonitorSettings
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings


class Scene:
    """A monitor that returns the readings of the test, and then always the last one."""

    def __init__(self, *sights: NodeReadings, timeout_s: float = 10.0) -> None:
        self.settings = MonitorSettings(monitor_interval_s=3600, release_timeout_s=timeout_s)
        self._sights = list(sights)
        self.changed: NodeInventory | None = None
        self.rescan_requested = False
        self.looks = 0
        self.heard: list[NodeReadings] = []
        self.found: list[NodeInventory] = []

    def detect_changes(self) -> NodeInventory | None:
        found, self.changed = self.changed, None
        return found

    def read(self) -> NodeReadings:
        self.looks += 1
        return self._sights.pop(0) if len(self._sights) > 1 else self._sights[0]

    def during(self, test: Callable[[DevicePoller], Awaitable[Any]]) -> Any:
        """Run a test while the poller runs."""

        async def run() -> Any:
            poller = DevicePoller(cast(DeviceMonitor, self), self.heard.append, self.found.append)
            running = asyncio.create_task(poller.run())
            try:
                return await asyncio.wait_for(test(poller), 60)
            finally:
                running.cancel()

        return asyncio.run(run())


def sight(*owners: str, left_mb: int = 0, problem: str = "") -> NodeReadings:
    processes = tuple(DeviceProcess(pid=1, allocation_id=owner) for owner in owners)
    reading = DeviceReading(index=3, processes=processes, unexplained_mb=left_mb)
    return NodeReadings(at_ms=0, readings=(reading,), problem=problem)


def test_end_waits_until_job_has_left_its_devices() -> None:
    scene = Scene(sight("a.1"), sight("a.1", "b.1"), sight("b.1"))
    assert scene.during(lambda poller: poller.wait_released("a.1", (3,))) is True
    assert scene.heard[-1] == sight("b.1"), "the server hears of it before the end is told"


def test_end_waits_only_for_memory_of_its_own_devices() -> None:
    scene = Scene(sight(left_mb=9), sight(left_mb=9), sight())
    assert scene.during(lambda poller: poller.wait_released("a.1", (3,))) is True
    assert scene.looks >= 3
    elsewhere = Scene(sight(left_mb=9))
    assert elsewhere.during(lambda poller: poller.wait_released("a.1", (0, 1))) is True


def test_wait_for_leftovers_is_bounded() -> None:
    scene = Scene(sight("a.1"), timeout_s=0.0)
    assert scene.during(lambda poller: poller.wait_released("a.1", ())) is False


def test_unreadable_devices_are_not_awaited() -> None:
    scene = Scene(sight("a.1", problem="the driver hangs"))
    assert scene.during(lambda poller: poller.wait_released("a.1", (3,))) is True


def test_concurrent_ends_share_readings() -> None:
    scene = Scene(sight())

    async def many(poller: DevicePoller) -> list[bool]:
        return await asyncio.gather(*(poller.wait_released(f"{n}.1", (3,)) for n in range(100)))

    assert scene.during(many) == [True] * 100
    assert scene.looks <= 3


def test_device_changes_are_reported_before_their_readings() -> None:
    scene = Scene(sight())
    scene.changed = NodeInventory(cpu_milli=1000, memory_mb=1000)

    async def after_a_look(poller: DevicePoller) -> None:
        await poller.wait_released("a.1", ())

    scene.during(after_a_look)
    assert scene.found == [NodeInventory(cpu_milli=1000, memory_mb=1000)]


def test_reading_with_changed_slices_triggers_discovery() -> None:
    new = NodeInventory(cpu_milli=1, memory_mb=1)

    class Divided(Scene):
        def read(self) -> NodeReadings:
            self.rescan_requested = self.looks == 0
            self.changed = new if self.rescan_requested else None
            return super().read()

    async def run() -> NodeInventory:
        told: asyncio.Future[NodeInventory] = asyncio.get_running_loop().create_future()
        poller = DevicePoller(
            cast(DeviceMonitor, Divided(sight())), lambda _: None, told.set_result
        )
        running = asyncio.create_task(poller.run())
        try:
            return await asyncio.wait_for(told, 60)
        finally:
            running.cancel()

    assert asyncio.run(run()) == new
