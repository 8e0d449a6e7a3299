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
    """What one member holds on one node.

    With a `lease_ms` the node stops it by itself when nobody has renewed that for so long.
    """

    member: int
    node_id: str
    devices: tuple[DeviceShare, ...]
    cpu_milli: int
    memory_mb: int
    lease_ms: int = 0

    @property
    def gpu_milli(self) -> int:
        """The shares of all devices together."""
        return sum(device.share_milli for device in self.devices)

    @property
    def gpu_memory_mb(self) -> int:
        """GPU memory over all devices."""
        return sum(device.memory_mb for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """That every member of a gang was prepared, and where they meet: from then on they may run.

    `hosts` are the addresses of the members' nodes in the order of ranks; all meet at the first.
    """

    at_ms: int
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All that one attempt of a job (or of one task of an array) holds, from when.

    While a gang over several nodes has no `meeting`, no command of its members runs anywhere.
    """

    id: str
    job_id: str
    task: int | None
    attempt: int
    placements: tuple[Placement, ...]
    start_ms: int
    meeting: Meeting | None = None

    @property
    def by_rank(self) -> tuple[Placement, ...]:
        """Where the members are, in the order of their ranks."""
        return tuple(sorted(self.placements, key=lambda placement: placement.member))

    @property
    def spans_nodes(self) -> bool:
        """Tell whether its members are on several nodes, so that only a commit lets them run."""
        first = self.placements[0].node_id if self.placements else ""
        return any(placement.node_id != first for placement in self.placements)

    @property
    def is_held_back(self) -> bool:
        """Tell whether nothing of it can have run, whatever its nodes say or do not say."""
        return self.spans_nodes and self.meeting is None

    def is_on(self, node_id: str, member: int) -> bool:
        """Tell whether that member is on that node."""
        return any(p.node_id == node_id and p.member == member for p in self.placements)

    @property
    def gpu_milli(self) -> int:
        """GPUs over all members."""
        return sum(placement.gpu_milli for placement in self.placements)
