"""The protocol of all device sources, and its values: the inventory of a node and its readings.

None means that the device does not report the value. Nothing here reads a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.agent.devices.host import Fabric
from gpu_scheduler.model.errors import ClusterError

NO_FABRIC = Fabric()


class DevicesUnreadable(ClusterError):
    """The driver or its tool does not answer; the same call may work later."""

    code = "devices_unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedSlice:
    """The MIG slices of one profile on one device, by UUID."""

    profile: str
    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedDevice:
    """One GPU. `index` counts in PCI bus order, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    `model` is the short name that jobs ask for, `name` the product name. A device without NVLink is
    alone on its island, at 0 GB/s. `numa_node` -1 means unknown.
    """

    index: int
    uuid: str = ""
    name: str = ""
    model: str = "GPU"
    memory_mb: int = 0
    island: int = 0
    bandwidth_gbps: int = 0
    mig_slices: tuple[DetectedSlice, ...] = ()
    pci_bus_id: str = ""
    path: str = ""
    numa_node: int = -1
    cpus: tuple[int, ...] = ()

    @property
    def mig_uuids(self) -> frozenset[str]:
        """The UUIDs of its MIG slices."""
        return frozenset(uuid for piece in self.mig_slices for uuid in piece.uuids)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """The resources of a node. `problem` says in a sentence why devices are missing."""

    cpu_milli: int
    memory_mb: int
    devices: tuple[DetectedDevice, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    rack: str = ""
    detection: str = "none"
    problem: str = ""
    fabric: Fabric = NO_FABRIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process on a device. `graphics` means that it only renders, and does not compute.

    `load_percent` is its share of the device's load, where the driver reports it per process.
    """

    pid: int
    user: str = ""
    command: str = ""
    memory_mb: int | None = None
    graphics: bool = False
    load_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of one device.

    `xids` are the errors that the driver reported since the last reading, `ecc_errors` counts the
    uncorrected ones since the driver was loaded. `fault` says why the device cannot work now (lost,
    waits for a reset); empty if it can. With `needs_reset`, the end of the fault implies that the
    device was reset. `mig_uuids` are the MIG slices that exist now.
    """

    index: int
    utilisation_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: int = 0
    ecc_errors: int | None = None
    xids: tuple[int, ...] = ()
    fault: str = ""
    needs_reset: bool = False
    processes: tuple[Process, ...] = ()
    mig_uuids: tuple[str, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Tell whether this reading shows neither a fault nor an error."""
        return not self.fault and not self.xids


class DeviceSource(Protocol):
    """Finds and reads the devices of this node.

    `find` and `read` raise only DevicesUnreadable, when the driver does not answer; a single bad
    device is a reading with a fault. `read` returns one reading for each device that was found, in
    the order of the indices. `close` may be called twice.
    """

    def find(self) -> NodeInventory: ...

    def read(self) -> list[Reading]: ...

    def close(self) -> None: ...


def join_islands(names: Sequence[str], remotes: Sequence[Sequence[str]]) -> list[int]:
    """The NVLink island of each device, numbered in the order of first members.

    `remotes` are the remote ends of each device's links: other devices, or switches. Devices with a
    common remote end are on one island; a device without links is alone.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for name, ends in zip(names, remotes, strict=True):
        for end in ends:
            leader[find(end)] = find(name)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(find(name), len(numbers)) for name in names]


def link_gbps(speed_mbps: int | None) -> int:
    """The nominal speed of a link in GB/s and one direction; drivers add the coding overhead.

    25,781 MB/s (A100) and 26,562 (H100) are 25, 53,125 (B200) is 50.
    """
    if not speed_mbps:
        return 25
    return max(1, speed_mbps // 1000 // 5 * 5)
