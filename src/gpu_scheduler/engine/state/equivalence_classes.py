"""Node classes and request shapes: what is alike is computed once.

Nodes with the same hardware are of one node class; all static facts about them are kept there.
Requests that are alike have one request shape: they share one answer per cycle. A shape holds, for
every node class, what a search needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from gpu_scheduler.engine.placement.gpu_choice import choose_gpus
from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.plan import DeviceShare
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Request, Topology

Part = tuple[int, int, int]
"""A share of a device: its position, the share and the memory."""
CPU_LEVELS = 64
"""Free CPU is bucketed by sixty-fourths of the node."""


class NodeClass:
    """The hardware of a group of alike nodes. Positions number the devices by rising index.

    `example` is a node of this class, if one is known; `absent_at` is the version of the index
    at which there was none. `cpu_unit` is its CPU to divide by, so never 0.
    """

    __slots__ = (
        "_whole_shares",
        "absent_at",
        "cpu_milli",
        "cpu_unit",
        "devices",
        "everything",
        "example",
        "has_memory",
        "id",
        "islands",
        "memory_mb",
        "models",
        "name",
        "row",
        "size",
        "split",
    )

    def __init__(self, class_id: int, node: Node, row: int) -> None:
        """Take the hardware of any node of this class."""
        self.id = class_id
        self.row = row
        self.example = node.id
        self.absent_at = -1
        self.devices = tuple(sorted(node.devices, key=_by_index))
        self.size = len(self.devices)
        self.name = repr(NodeClass.signature(node))
        self.cpu_milli = node.cpu_milli
        self.cpu_unit = node.cpu_milli or 1
        self.memory_mb = node.memory_mb
        self.models = tuple(sorted({device.model for device in self.devices}))
        self.everything = (1 << self.size) - 1
        self.has_memory = any(device.memory_mb for device in self.devices)
        self.islands = self._island_masks()
        self.split = self._mask(lambda device: device.mode is DeviceMode.MIG)
        self._whole_shares: dict[int, tuple[DeviceShare, ...]] = {}

    @staticmethod
    def signature(node: Node) -> tuple[object, ...]:
        """What two nodes must have in common to be of one class."""
        devices = tuple(
            (d.index, d.model, d.memory_mb, d.island, d.bandwidth_gbps, d.mig_slices)
            for d in sorted(node.devices, key=_by_index)
        )
        return (devices, node.cpu_milli, node.memory_mb)

    def allowed_mask(self, request: Request, model: str) -> int:
        """The positions that the request may use, were they free."""

        def allows(device: Device) -> bool:
            if device.model != model or device.bandwidth_gbps < request.min_bandwidth_gbps:
                return False
            if (device.mode is DeviceMode.MIG) != bool(request.mig_profile):
                return False
            if request.device_ids and device.index not in request.device_ids:
                return False
            least = max(request.gpu_memory_mb, request.gpu_extra_memory_mb)
            return bool(request.mig_profile) or device.memory_mb >= least

        return self._mask(allows)

    def mask_of(self, indices: Collection[int]) -> int:
        """The positions of the devices with these indices, as a mask."""
        return self._mask(lambda device: device.index in indices)

    def whole_shares(self, mask: int) -> tuple[DeviceShare, ...]:
        """These devices as a placement names them, all of each; one object for all who ask."""
        shares = self._whole_shares.get(mask)
        if shares is None:
            shares = self._whole_shares[mask] = tuple(
                DeviceShare(device.index, WHOLE_MILLI, device.memory_mb)
                for position, device in enumerate(self.devices)
                if mask >> position & 1
            )
        return shares

    def mig_count(self, profile: str, allowed: int) -> int:
        """How many slices of a profile the allowed devices offer."""
        return sum(
            count
            for position, device in enumerate(self.devices)
            if allowed >> position & 1
            for name, count in device.mig_slices
            if name == profile
        )

    def pick(self, free: int, request: Request) -> int:
        """Choose the whole devices of a request from the free positions.

        0 if there are too few, or if the wishes about topology forbid it.
        """
        if free.bit_count() < request.gpu_count:
            return 0
        return choose_gpus(
            free, self.islands, request.gpu_count, request.topology, contiguous=request.contiguous
        )

    def _island_masks(self) -> tuple[int, ...]:
        masks: dict[int, int] = {}
        for position, device in enumerate(self.devices):
            masks[device.island] = masks.get(device.island, 0) | 1 << position
        return tuple(mask for _, mask in sorted(masks.items()))

    def _mask(self, test: Callable[[Device], bool]) -> int:
        mask = 0
        for position, device in enumerate(self.devices):
            if test(device):
                mask |= 1 << position
        return mask


def _by_index(device: Device) -> int:
    return device.index


def same_hardware(one: Node, other: Node) -> bool:
    """Tell whether two nodes, or one before and after, are of one class."""
    return NodeClass.signature(one) == NodeClass.signature(other)


@dataclass(slots=True)
class Fit:
    """How one request fits nodes of one class: allowed devices of one model, least CPU level.

    `part_mb` is what a share takes of a device's memory, by position, and `parts` what a request of
    one share holds of it; made once, because every search needs it.
    """

    node_class: NodeClass
    allowed: int
    level: int
    part_mb: tuple[int, ...] = ()
    parts: tuple[tuple[Part], ...] = ()
    picks: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RequestShape:
    """One distinct request, with the node classes that could run it when empty.

    `nodes` are the nodes of these classes at a `version` of the index; None for all. `preferred` is
    a stricter request that is tried first.
    """

    id: int
    request: Request
    fits: list[Fit] = field(default_factory=list)
    by_node_class: dict[int, list[Fit]] = field(default_factory=dict)
    node_classes_seen: int = 0
    nodes: int | None = None
    version: int = -1
    count: int = 0
    share: int = 0
    extra: int = 0
    cpu: int = 0
    memory: int = 0
    part_mb: int = 0
    step: int = 0
    least: int = 0
    whole_only: bool = False
    one_part: bool = False
    labelled: bool = False
    preferred: Request | None = None
    _widths: list[tuple[int, NodeClass]] | None = None

    def __post_init__(self) -> None:
        """Copy what the hot path reads, so that it reads one attribute."""
        request = self.request
        self.count = request.gpu_count
        self.share = request.gpu_share_milli
        self.extra = request.gpu_extra_milli
        self.cpu = request.cpu_milli
        self.memory = request.memory_mb
        self.part_mb = request.gpu_memory_mb
        self.step = -(-self.share // SHARE_STEP_MILLI)
        self.whole_only = request.takes_whole_devices_only
        self.one_part = self.count == 1 and self.share < WHOLE_MILLI and not self.extra
        self.least = self.count if self.share == WHOLE_MILLI and not request.mig_profile else 0
        self.labelled = bool(request.node_labels)
        if request.preferred_bandwidth_gbps:
            self.preferred = replace(
                request,
                preferred_bandwidth_gbps=0,
                min_bandwidth_gbps=request.preferred_bandwidth_gbps,
                topology=Topology.REQUIRE_ISLAND,
            )

    @property
    def hardness(self) -> tuple[int, ...]:
        """Smaller is harder to place: few node classes, many devices, large shares."""
        request = self.request
        picky = bool(request.device_ids or request.node_labels or request.contiguous)
        return (-picky, len(self.fits), -self.count, -self.extra, -self.share, -self.cpu)

    @property
    def uses_gpus(self) -> bool:
        """Tell GPU work from CPU-only work."""
        return self.count > 0 or self.extra > 0

    def learn(self, node_classes: list[NodeClass]) -> None:
        """Add the node classes that came up since the last search."""
        for node_class in node_classes[self.node_classes_seen :]:
            fits = _fits_of(self.request, node_class)
            if fits:
                self.fits.extend(fits)
                self.by_node_class[node_class.id] = fits
        # By what the nodes are, so that the order in which they came has no say.
        self.fits.sort(key=lambda fit: fit.node_class.name)
        self.node_classes_seen = len(node_classes)
        self._widths = None

    def widths(self, node_classes: list[NodeClass]) -> list[tuple[int, NodeClass]]:
        """Most first: how many devices of one model the request may use on each node class."""
        if self.node_classes_seen != len(node_classes):
            self.learn(node_classes)
        if self._widths is None:
            widths = [(_width(self.request, node_class), node_class) for node_class in node_classes]
            self._widths = sorted(widths, key=lambda width: (-width[0], width[1].id))
        return self._widths


def _width(request: Request, node_class: NodeClass) -> int:
    models = [m for m in node_class.models if not request.gpu_models or m in request.gpu_models]
    return max((node_class.allowed_mask(request, model).bit_count() for model in models), default=0)


def _fits_of(request: Request, node_class: NodeClass) -> list[Fit]:
    """One fit per model of the class that could run the request on an empty node."""
    if request.cpu_milli > node_class.cpu_milli or request.memory_mb > node_class.memory_mb:
        return []
    level = request.cpu_milli * CPU_LEVELS // node_class.cpu_milli if node_class.cpu_milli else 0
    if not request.device_count:
        return [Fit(node_class, 0, level)]
    fits = []
    for model in node_class.models:
        if request.gpu_models and model not in request.gpu_models:
            continue
        allowed = node_class.allowed_mask(request, model)
        if not _could_ever_fit(request, node_class, allowed):
            continue
        part_mb = tuple(
            request.gpu_memory_mb or device.memory_mb * request.gpu_share_milli // WHOLE_MILLI
            for device in node_class.devices
        )
        parts = tuple(
            ((position, request.gpu_share_milli, memory_mb),)
            for position, memory_mb in enumerate(part_mb)
        )
        fits.append(Fit(node_class, allowed, level, part_mb, parts))
    return fits


def _could_ever_fit(request: Request, node_class: NodeClass, allowed: int) -> bool:
    """Judge against an empty, healthy node."""
    if request.mig_profile:
        return node_class.mig_count(request.mig_profile, allowed) >= request.gpu_count
    if request.topology is Topology.REQUIRE_ISLAND:
        return any(
            _has_room(request, node_class, allowed & island) for island in node_class.islands
        )
    return _has_room(request, node_class, allowed)


def _has_room(request: Request, node_class: NodeClass, allowed: int) -> bool:
    if allowed.bit_count() < request.device_count:
        return False
    if request.contiguous and request.gpu_count:
        return node_class.pick(allowed, request) != 0
    return True
