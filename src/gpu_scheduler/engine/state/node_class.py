"""Nodes with the same hardware are of one kind; everything static about them is computed once."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.plan import DeviceShare
from gpu_scheduler.model.request import WHOLE_MILLI, Request, Topology


class NodeClass:
    """The hardware of a group of alike nodes. Positions number the devices by rising index.

    `example` is a node of this kind, as far as is known; `absent_at` is the version of the index
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
        """Take the hardware of any node of this kind."""
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
        """What two nodes must have in common to be of one kind."""
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
        return self._pick(free, request.gpu_count, request.topology, contiguous=request.contiguous)

    def _pick(self, free: int, count: int, topology: Topology, *, contiguous: bool) -> int:
        """Tightest island first; over several islands, the fullest first."""
        choices = [
            (mask.bit_count(), order, mask)
            for order, island in enumerate(self.islands)
            if (mask := island & free)
        ]
        for _, _, mask in sorted(choice for choice in choices if choice[0] >= count):
            picked = _run(mask, count) if contiguous else lowest_bits(mask, count)
            if picked:
                return picked
        if topology is Topology.REQUIRE_ISLAND:
            return 0
        if contiguous:
            return _run(free, count)
        picked = 0
        for size, _, mask in sorted(choices, key=lambda choice: (-choice[0], choice[1])):
            wanted = min(size, count - picked.bit_count())
            picked |= lowest_bits(mask, wanted)
        return picked if picked.bit_count() == count else 0

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


def lowest_bits(mask: int, count: int) -> int:
    """The lowest `count` bits that are set."""
    picked = 0
    for _ in range(count):
        low = mask & -mask
        picked |= low
        mask ^= low
    return picked


def _run(mask: int, count: int) -> int:
    """The lowest `count` neighbouring bits, or 0 if there are none."""
    wanted = (1 << count) - 1
    for position in range(mask.bit_length() - count + 1):
        if mask >> position & wanted == wanted:
            return wanted << position
    return 0


def same_hardware(one: Node, other: Node) -> bool:
    """Tell whether two nodes, or one before and after, are of one kind."""
    return NodeClass.signature(one) == NodeClass.signature(other)
