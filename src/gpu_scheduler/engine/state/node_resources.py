"""The free resources of one node, and the part that one member is granted.

Only `NodeIndex` changes `NodeResources`, because its buckets have to follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.engine.state.equivalence_classes import Fit, NodeClass, Part, RequestShape
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.model.plan import DeviceShare, Placement
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Topology, mig_share_milli

Vector = (
    tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
    | tuple[int, int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
)
"""Node class, free CPU, free memory, what is left of every device (-1: takes no work), sizes on it.

Some nodes have a sixth part: if any device with memory is shared, the memory left of every device
by position (-1: this one is not shared), and the MIG slices left. It is left out where there is
nothing to say, because vectors are hashed with every change.
"""


@dataclass(slots=True, eq=False)
class Grant:
    """What one member gets of one node: whole devices as a mask, shares, and MIG slices.

    `parts` are (position, share, memory), `slices` are (position, profile).
    """

    resources: NodeResources
    mask: int
    cpu: int
    memory: int
    parts: tuple[Part, ...] = ()
    slices: tuple[tuple[int, str], ...] = ()
    member: int = 0

    def on(self, resources: NodeResources) -> Grant:
        """The same amounts on a copy of the node."""
        return Grant(
            resources, self.mask, self.cpu, self.memory, self.parts, self.slices, self.member
        )

    def placement(self) -> Placement:
        """The same as a placement of the model."""
        node_class = self.resources.node_class
        shares = node_class.whole_shares(self.mask)
        if self.parts or self.slices:
            devices = node_class.devices
            split = [DeviceShare(devices[p].index, milli, mb) for p, milli, mb in self.parts]
            split += [
                DeviceShare(devices[p].index, mig_share_milli(profile), 0, profile)
                for p, profile in self.slices
            ]
            shares = tuple(sorted((*shares, *split), key=lambda share: share.index))
        return Placement(self.member, self.resources.node.id, shares, self.cpu, self.memory)


class NodeResources:
    """The free amounts of one node.

    `usable` are devices that take work, `busy` those that are in any use or split by MIG. A device
    in `shared` has [share left, memory left, holders]. `bit` is the place in bitmaps of nodes, and
    `bucket` and `steps` are where the index has put the node (-1: nowhere); it still belongs there
    if it is `in_place` and `in_rows`.
    """

    __slots__ = (
        "bit",
        "bucket",
        "busy",
        "free_cpu",
        "free_memory",
        "in_place",
        "in_rows",
        "mig",
        "node",
        "node_class",
        "ordinal",
        "shared",
        "sizes",
        "steps",
        "usable",
        "vector",
        "vector_number",
    )

    def __init__(self, node: Node, node_class: NodeClass) -> None:
        """Start empty."""
        self.node = node
        self.node_class = node_class
        self.ordinal = node.ordinal
        self.bit = 0
        self.free_cpu = node.cpu_milli
        self.free_memory = node.memory_mb
        self.busy = node_class.split
        self.usable = usable_mask(node, node_class)
        self.shared: dict[int, list[int]] = {}
        self.mig: dict[tuple[int, str], int] = {
            (position, profile): count
            for position, device in enumerate(node_class.devices)
            for profile, count in device.mig_slices
        }
        self.bucket = -1
        self.in_place = False
        self.in_rows = False
        self.steps = 0
        self.vector: Vector | None = None
        self.vector_number = -1
        self.sizes: dict[int, int] = {}

    @property
    def takes_work(self) -> bool:
        """Tell whether the node takes work at all."""
        return self.node.takes_work

    @property
    def free_mask(self) -> int:
        """The devices that are wholly free."""
        return self.usable & ~self.busy

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing of the node is allocated."""
        slices = [count for device in self.node_class.devices for _, count in device.mig_slices]
        return (
            self.busy == self.node_class.split
            and self.free_cpu == self.node.cpu_milli
            and self.free_memory == self.node.memory_mb
            and list(self.mig.values()) == slices
        )

    def free_gpu_milli(self) -> int:
        """Everything on usable devices that is not allocated."""
        free = self.free_mask.bit_count() * WHOLE_MILLI
        for position, (share, _, _) in self.shared.items():
            if self.usable >> position & 1:
                free += share
        return free

    @property
    def out_of_use(self) -> int:
        """The devices that take no work; all if the node is closed, or silent for long."""
        node = self.node
        if node.closed is not None or node.state in {NodeState.LOST, NodeState.DEAD}:
            return self.node_class.everything
        return self.node_class.everything & ~self.usable

    def idle_milli(self, devices: int) -> int:
        """What is not allocated of these devices, whether it can be used or not."""
        idle = (devices & ~(self.busy & ~self.node_class.split)).bit_count() * WHOLE_MILLI
        for position, (share, _, _) in self.shared.items():
            idle += share * (devices >> position & 1)
        for position, device in enumerate(self.node_class.devices):
            for profile, count in device.mig_slices if devices >> position & 1 else ():
                # No request can name an unknown profile, so its slices are never allocated.
                if held := count - self.mig[position, profile]:
                    idle -= held * mig_share_milli(profile)
        return idle

    def free_slices(self, profile: str) -> int:
        """The MIG slices of a profile on usable devices that are not held."""
        return sum(
            left
            for (position, name), left in self.mig.items()
            if name == profile and self.usable >> position & 1
        )

    def copy(self) -> NodeResources:
        """A copy that is in no bucket, to try things on."""
        twin = NodeResources.__new__(NodeResources)
        twin.node = self.node
        twin.node_class = self.node_class
        twin.ordinal = self.ordinal
        twin.bit = self.bit
        twin.free_cpu = self.free_cpu
        twin.free_memory = self.free_memory
        twin.busy = self.busy
        twin.usable = self.usable
        twin.shared = {position: list(entry) for position, entry in self.shared.items()}
        twin.mig = dict(self.mig)
        twin.bucket = -1
        twin.in_place = False
        twin.in_rows = False
        twin.steps = 0
        twin.vector = None
        twin.sizes = dict(self.sizes)
        return twin

    def grant_for(self, placement: Placement) -> Grant:
        """Read a placement back into positions of this node."""
        place_of = {
            device.index: position for position, device in enumerate(self.node_class.devices)
        }
        mask = 0
        parts: list[Part] = []
        slices: list[tuple[int, str]] = []
        for share in placement.devices:
            position = place_of[share.index]
            if share.mig_profile:
                slices.append((position, share.mig_profile))
            elif share.share_milli == WHOLE_MILLI:
                mask |= 1 << position
            else:
                parts.append((position, share.share_milli, share.memory_mb))
        return Grant(
            self,
            mask,
            placement.cpu_milli,
            placement.memory_mb,
            tuple(parts),
            tuple(slices),
            placement.member,
        )

    def take_parts(self, parts: tuple[Part, ...]) -> None:
        """Take shares of devices; a free device becomes a shared one."""
        for position, share, memory_mb in parts:
            entry = self.shared.get(position)
            if entry is None:
                device_mb = self.node_class.devices[position].memory_mb
                self.shared[position] = [WHOLE_MILLI - share, device_mb - memory_mb, 1]
                self.busy |= 1 << position
            else:
                entry[0] -= share
                entry[1] -= memory_mb
                entry[2] += 1

    def give_parts(self, parts: tuple[Part, ...]) -> None:
        """Return shares of devices; the last one leaves a free device."""
        for position, share, memory_mb in parts:
            entry = self.shared[position]
            if entry[2] == 1:
                del self.shared[position]
                self.busy ^= 1 << position
            else:
                entry[0] += share
                entry[1] += memory_mb
                entry[2] -= 1

    def choose(
        self, shape: RequestShape, fit: Fit, *, member: int = 0, spread: bool = False
    ) -> Grant | None:
        """Find devices on this node for the request, or None.

        With `spread`, shares go to free devices first, else to those with the largest rest.
        """
        if self.free_cpu < shape.cpu or self.free_memory < shape.memory:
            return None
        if shape.whole_only:
            free = self.usable & ~self.busy & fit.allowed
            mask = fit.picks.get(free)
            if mask is None:
                mask = fit.picks[free] = fit.node_class.pick(free, shape.request)
            return Grant(self, mask, shape.cpu, shape.memory, (), (), member) if mask else None
        if not shape.uses_gpus:
            return Grant(self, 0, shape.cpu, shape.memory, (), (), member)
        if shape.request.mig_profile:
            return self._choose_slices(shape, fit, member)
        return self._choose_parts(shape, fit, member, spread=spread)

    def can_take(self, grant: Grant) -> bool:
        """Tell whether certain devices and amounts are free."""
        if self.free_cpu < grant.cpu or self.free_memory < grant.memory:
            return False
        if grant.mask & ~(self.usable & ~self.busy):
            return False
        for position, share, memory_mb in grant.parts:
            entry = self.shared.get(position)
            if not self.usable >> position & 1:
                return False
            if entry is None:
                if self.busy >> position & 1:
                    return False
            elif entry[0] < share or entry[1] < memory_mb:
                return False
        return all(
            self.mig[key] >= grant.slices.count(key) and self.usable >> key[0] & 1
            for key in grant.slices
        )

    def choose_any(self, shape: RequestShape) -> Grant | None:
        """Find devices of any model that the request allows."""
        for fit in shape.by_node_class.get(self.node_class.id, ()):
            grant = self.choose(shape, fit)
            if grant is not None:
                return grant
        return None

    def devices_for(self, shape: RequestShape) -> int:
        """The devices that a request may use; one share: not those taken whole or out of memory.

        How much of them is left does not matter.
        """
        mask = 0
        for fit in shape.by_node_class.get(self.node_class.id, ()):
            mask |= fit.allowed
        mask &= self.usable
        if shape.one_part:
            taken = self.busy
            for position, entry in self.shared.items():
                need_mb = shape.part_mb or part_memory_mb(self.node_class, position, shape.share)
                if need_mb <= entry[1]:
                    taken ^= 1 << position
            mask &= ~taken
        return mask

    def choose_device(self, shape: RequestShape, position: int) -> Grant | None:
        """A share of one certain device."""
        if self.free_cpu < shape.cpu or self.free_memory < shape.memory:
            return None
        if not any(
            (fit.allowed & self.usable) >> position & 1
            for fit in shape.by_node_class[self.node_class.id]
        ):
            return None
        need_mb = shape.part_mb or part_memory_mb(self.node_class, position, shape.share)
        entry = self.shared.get(position)
        if entry is None:
            if self.busy >> position & 1:
                return None
        elif entry[0] < shape.share or entry[1] < need_mb:
            return None
        return Grant(self, 0, shape.cpu, shape.memory, ((position, shape.share, need_mb),))

    def choose_part(self, shape: RequestShape, step: int) -> Grant | None:
        """A partly used device with just this much left, for a request of one share.

        The index has seen to CPU and memory.
        """
        for fit in shape.by_node_class[self.node_class.id]:
            allowed = self.usable & fit.allowed
            found = -1
            for position, entry in self.shared.items():
                if (
                    entry[0] // SHARE_STEP_MILLI == step
                    and allowed >> position & 1
                    and fit.part_mb[position] <= entry[1]
                    and (found < 0 or position < found)
                ):
                    found = position
            if found >= 0:
                return Grant(self, 0, shape.cpu, shape.memory, fit.parts[found])
        return None

    def open_device(self, shape: RequestShape, fit: Fit) -> Grant | None:
        """A device that is wholly free, for a request of one share."""
        if self.free_cpu < shape.cpu or self.free_memory < shape.memory:
            return None
        free = self.usable & ~self.busy & fit.allowed
        if not free:
            return None
        if shape.request.topology is Topology.REQUIRE_ISLAND:
            free = min((i & free for i in fit.node_class.islands if i & free), key=int.bit_count)
        position = (free & -free).bit_length() - 1
        return Grant(self, 0, shape.cpu, shape.memory, fit.parts[position])

    def _choose_parts(
        self, shape: RequestShape, fit: Fit, member: int, *, spread: bool
    ) -> Grant | None:
        """Whole devices for a request such as 1.5, and the tightest device for each share."""
        if shape.request.topology is not Topology.REQUIRE_ISLAND:
            return self._choose_parts_in(fit.allowed, shape, fit, member, spread=spread)
        free = self.usable & ~self.busy & fit.allowed
        for island in sorted(
            fit.node_class.islands, key=lambda island: (island & free).bit_count()
        ):
            grant = self._choose_parts_in(island & fit.allowed, shape, fit, member, spread=spread)
            if grant is not None:
                return grant
        return None

    def _choose_parts_in(
        self, allowed: int, shape: RequestShape, fit: Fit, member: int, *, spread: bool
    ) -> Grant | None:
        mask = 0
        shares: list[tuple[int, int]]
        if shape.extra:
            if shape.count:
                mask = fit.node_class.pick(self.usable & ~self.busy & allowed, shape.request)
                if not mask:
                    return None
            shares = [(shape.extra, shape.request.gpu_extra_memory_mb)]
        else:
            shares = [(shape.share, shape.request.gpu_memory_mb)] * shape.count
        parts: list[Part] = []
        taken = mask
        for share, memory_mb in shares:
            part = self._choose_part(share, memory_mb, allowed & ~taken, spread=spread)
            if part is None:
                return None
            taken |= 1 << part[0]
            parts.append(part)
        return Grant(self, mask, shape.cpu, shape.memory, tuple(parts), (), member)

    def _choose_part(
        self, share: int, memory_mb: int, allowed: int, *, spread: bool
    ) -> Part | None:
        """The device with the smallest rest that is enough; a free device if there is none.

        Spreading goes the other way round: a free device, else the one with the largest rest.
        """
        allowed &= self.usable
        free = allowed & ~self.busy
        if spread and free:
            return self._part_of_free(free, share, memory_mb)
        best: Part | None = None
        best_left = 0
        for position in sorted(self.shared):
            share_left, memory_left, _ = self.shared[position]
            need_mb = memory_mb or part_memory_mb(self.node_class, position, share)
            if not allowed >> position & 1 or share > share_left or need_mb > memory_left:
                continue
            if best is None or (share_left > best_left if spread else share_left < best_left):
                best, best_left = (position, share, need_mb), share_left
        if best is None and free:
            return self._part_of_free(free, share, memory_mb)
        return best

    def _part_of_free(self, free: int, share: int, memory_mb: int) -> Part:
        position = (free & -free).bit_length() - 1
        return (position, share, memory_mb or part_memory_mb(self.node_class, position, share))

    def _choose_slices(self, shape: RequestShape, fit: Fit, member: int) -> Grant | None:
        """Slices of one profile, from the devices with the fewest left."""
        profile = shape.request.mig_profile
        offers = sorted(
            (left, position)
            for (position, name), left in self.mig.items()
            if name == profile and left and (fit.allowed & self.usable) >> position & 1
        )
        slices: list[tuple[int, str]] = []
        for left, position in offers:
            slices += [(position, profile)] * min(left, shape.count - len(slices))
        if len(slices) < shape.count:
            return None
        return Grant(self, 0, shape.cpu, shape.memory, (), tuple(slices), member)


def part_memory_mb(node_class: NodeClass, position: int, share: int) -> int:
    """A share without a stated memory gets the same share of the device's memory."""
    return node_class.devices[position].memory_mb * share // WHOLE_MILLI


def usable_mask(node: Node, node_class: NodeClass) -> int:
    """The devices that take whole or shared work now, and those that MIG divides."""
    return node_class.mask_of({device.index for device in node.devices if device.takes_work})
