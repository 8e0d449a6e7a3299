"""Devices that appear and disappear while an agent runs."""

from gpu_scheduler.agent.devices.discovery import HotplugScan
from gpu_scheduler.agent.devices.source import DetectedDevice, DevicesUnreadable, NodeInventory


def found(*uuids: str) -> NodeInventory:
    devices = tuple(DetectedDevice(index=i, uuid=uuid) for i, uuid in enumerate(uuids))
    return NodeInventory(cpu_milli=1000, memory_mb=1000, devices=devices)


class Machine:
    """A fake kernel and driver that count the driver queries."""

    def __init__(self) -> None:
        self.gpus = ("a",)
        self.found: NodeInventory | None = found("A")
        self.asked = 0
        self.now_s = 0.0
        self.hotplug = HotplugScan(self.find, found("A"), lambda: self.gpus)

    def without_devices(self) -> None:
        """A machine whose driver is not loaded yet."""
        self.gpus, self.found = (), found()
        self.hotplug = HotplugScan(
            self.find, found(), lambda: self.gpus, retry_when_empty=True, clock=lambda: self.now_s
        )

    def asked_within(self, seconds: int) -> int:
        """The number of driver queries with one scan per second."""
        before = self.asked
        for _ in range(seconds):
            self.now_s += 1
            self.hotplug.scan()
        return self.asked - before

    def find(self) -> NodeInventory:
        self.asked += 1
        if self.found is None:
            raise DevicesUnreadable("the driver is being loaded")
        return self.found


def test_driver_is_queried_only_when_kernel_devices_change() -> None:
    machine = Machine()
    assert machine.hotplug.scan() is None
    assert machine.asked == 0
    machine.gpus, machine.found = ("a", "b"), found("A", "B")
    assert machine.hotplug.scan() == found("A", "B")
    assert machine.hotplug.scan() is None
    assert machine.asked == 1


def test_removed_device_is_reported() -> None:
    machine = Machine()
    machine.gpus, machine.found = (), found()
    assert machine.hotplug.scan() == found()


def test_explicit_rescan_is_answered_without_change() -> None:
    machine = Machine()
    machine.hotplug.request()
    assert machine.hotplug.scan() is None
    assert machine.asked == 1


def test_driver_that_is_not_ready_is_retried() -> None:
    machine = Machine()
    machine.gpus, machine.found = ("a", "b"), None
    assert machine.hotplug.scan() is None
    machine.found = found("A", "B")
    assert machine.hotplug.scan() == found("A", "B")


def test_device_without_answer_is_kept_unchanged() -> None:
    machine = Machine()
    machine.gpus, machine.found = ("a", "b"), found("", "B")
    assert machine.hotplug.scan() == found("A", "B")


def test_driver_loaded_after_agent_is_found_automatically() -> None:
    machine = Machine()
    machine.without_devices()
    assert machine.hotplug.scan() is None
    machine.found = found("A", "B")
    machine.now_s = 5
    assert machine.hotplug.scan() == found("A", "B")


def test_node_without_devices_is_polled_with_backoff() -> None:
    machine = Machine()
    machine.without_devices()
    assert machine.asked_within(3600) < 20
    assert machine.asked_within(3600) == 12


def test_kernel_event_or_rescan_request_resets_backoff() -> None:
    machine = Machine()
    machine.without_devices()
    machine.asked_within(3600)
    machine.gpus = ("a",)
    assert machine.asked_within(11) == 2
    machine.asked_within(3600)
    machine.hotplug.request()
    assert machine.asked_within(1) == 1


def test_node_with_devices_is_not_searched_further() -> None:
    machine = Machine()
    machine.without_devices()
    machine.found = found("A")
    machine.hotplug.request()
    assert machine.hotplug.scan() == found("A")
    assert machine.asked_within(3600) == 0
