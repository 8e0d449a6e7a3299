"""Which devices of which nodes a job holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of one device. A whole device has share 1000 and all of its memory."""

    index: int
    share_milli: int
    memory_mb: int
    mig_profile: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """What one member holds on one node."""

    member: int
    node_id: str
    devices: tuple[DeviceShare, ...]
    cpu_milli: int
    memory_mb: int

    @property
    def gpu_milli(self) -> int:
        """The shares of all devices together."""
        return sum(device.share_milli for device in self.devices)

    @property
    def gpu_memory_mb(self) -> int:
        """GPU memory over all devices."""
        return sum(device.memory_mb for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All that one attempt of a job (or of one task of an array) holds, from when."""

    id: str
    job_id: str
    task: int | None
    attempt: int
    placements: tuple[Placement, ...]
    start_ms: int

    @property
    def gpu_milli(self) -> int:
        """GPUs over all members."""
        return sum(placement.gpu_milli for placement in self.placements)
