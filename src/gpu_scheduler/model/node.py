"""Machines and their GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest, WrongState


class NodeState(StrEnum):
    """Whether anything is heard of a node: for a while, for long, or for certain never again."""

    ONLINE = "online"
    SUSPECT = "suspect"
    LOST = "lost"
    DEAD = "dead"


class DeviceMode(StrEnum):
    """How a device is divided at this moment."""

    WHOLE = "whole"
    SHARED = "shared"
    MIG = "mig"


class Health(StrEnum):
    """Whether a device can be trusted with work."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


DEVICE_MODE_MOVES: dict[DeviceMode, tuple[DeviceMode, ...]] = {
    DeviceMode.WHOLE: (DeviceMode.SHARED, DeviceMode.MIG),
    DeviceMode.SHARED: (DeviceMode.WHOLE,),
    DeviceMode.MIG: (DeviceMode.WHOLE,),
}
"""A shared device must be empty again before it can be split by MIG, and the other way round."""


def change_mode(current: DeviceMode, wanted: DeviceMode, *, in_use: bool) -> DeviceMode:
    """Move a device to another mode, or say why not."""
    if current is wanted:
        return current
    if wanted not in DEVICE_MODE_MOVES[current]:
        raise WrongState(f"a device that is {current} cannot become {wanted}; make it whole first")
    if in_use:
        raise WrongState(
            f"the device is in use as {current}; it can become {wanted} when it is free"
        )
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUse:
    """A process on the device that holds it and that no running job owns.

    It is somebody else's; or, if `leaked`, it was left behind by the `job` (or task) that is over.
    The PID is 0 if nobody can be seen.
    """

    pid: int
    user: str = ""
    memory_mb: int = 0
    command: str = ""
    leaked: bool = False
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. `island` groups the devices of a node that NVLink joins at `bandwidth_gbps`.

    A person has `paused` it; it is `quarantined` because jobs kept dying on it. `why` says what is
    wrong with its health. Processes that are `forgiven` do not keep it from our jobs. `trust_ms` is
    when somebody last had looked after it; 0 once its node has said that it knows.
    """

    index: int
    uuid: str = ""
    model: str = "GPU"
    memory_mb: int = 0
    mode: DeviceMode = DeviceMode.WHOLE
    mig_slices: tuple[tuple[str, int], ...] = ()
    island: int = 0
    bandwidth_gbps: int = 0
    temperature_c: int = 0
    hot: bool = False
    health: Health = Health.HEALTHY
    paused: bool = False
    quarantined: bool = False
    foreign: ForeignUse | None = None
    why: str = ""
    forgiven: tuple[int, ...] = ()
    trust_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse negative amounts, and slices on a device that is not split."""
        if self.index < 0 or self.memory_mb < 0:
            raise InvalidRequest(
                f"device {self.index} with {self.memory_mb} MiB: both must be 0 or more"
            )
        if (self.mode is DeviceMode.MIG) != bool(self.mig_slices):
            raise InvalidRequest(f"device {self.index}: MIG mode and MIG slices go together")

    @property
    def takes_work(self) -> bool:
        """Tell whether new work may be placed here."""
        return (
            self.health is Health.HEALTHY
            and not self.paused
            and not self.quarantined
            and not self.hot
            and self.foreign is None
        )


def hot_after(*, was_hot: bool, temperature_c: int, threshold_c: int, hysteresis_c: int) -> bool:
    """A device becomes hot above the threshold and cool again only well below it."""
    if was_hot:
        return temperature_c > threshold_c - hysteresis_c
    return temperature_c > threshold_c


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A port of a network adapter that NCCL can use; `link` is InfiniBand or Ethernet (RoCE)."""

    name: str
    port: int = 1
    link: str = "InfiniBand"
    rate_gbps: int = 0
    numa_node: int = -1
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A node takes no new work, as people decided, or as the scheduler found a fault with it.

    If it `drains`, it is to be empty. What still runs there at `requeue_ms` is stopped and waits
    again; None lets it end by itself. If it `heals`, it is open again when its agent says so.
    """

    since_ms: int
    by: str = ""
    reason: str = ""
    drains: bool = False
    requeue_ms: int | None = None
    is_fault: bool = False
    heals: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. `ordinal` is given once, at registration, and decides ties between nodes.

    `labels` are those that its agent found, with what people changed about them: `given_labels`,
    where None takes one away. `address` is where members of a gang on other nodes reach it, and
    `version` that of its agent. `silent_ms` is since when nothing is heard of it; 0 if it is, or if
    it was when the server began.
    """

    id: str
    ordinal: int
    cpu_milli: int = 0
    memory_mb: int = 0
    devices: tuple[Device, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    rack: str = ""
    state: NodeState = NodeState.ONLINE
    closed: Closed | None = None
    found_labels: tuple[tuple[str, str], ...] = ()
    given_labels: tuple[tuple[str, str | None], ...] = ()
    address: str = ""
    version: str = ""
    numa_nodes: int = 0
    direct_storage: bool = False
    adapters: tuple[Adapter, ...] = ()
    silent_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse negative amounts and device indices that are not unique."""
        if self.cpu_milli < 0 or self.memory_mb < 0 or self.ordinal < 0:
            raise InvalidRequest(f"node {self.id}: CPU, memory and ordinal must be 0 or more")
        indices = [device.index for device in self.devices]
        if len(set(indices)) != len(indices):
            raise InvalidRequest(f"node {self.id}: two devices have the same index")

    @property
    def gpu_count(self) -> int:
        """How many devices the node has."""
        return len(self.devices)

    @property
    def takes_work(self) -> bool:
        """Tell whether new work may be placed here."""
        return self.state is NodeState.ONLINE and self.closed is None


def labels_with(
    found: tuple[tuple[str, str], ...], given: tuple[tuple[str, str | None], ...]
) -> tuple[tuple[str, str], ...]:
    """The labels of a node: what its agent says, changed by what people say."""
    merged: dict[str, str | None] = {**dict(found), **dict(given)}
    return tuple(sorted((name, value) for name, value in merged.items() if value is not None))
