"""Which nodes have what free: buckets of nodes as bitmaps, kept true with every change.

Nodes of one kind are bucketed by wholly free devices and by free CPU (in sixty-fourths), and
nodes with partly used devices by what is left of them. A search walks the buckets from the best
one on; the first node that passes the exact check wins, the lowest ordinal on a tie. So the
answer depends only on what is free, never on the way that led there.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.engine.kind import Kind
from gpu_scheduler.engine.shape import CPU_LEVELS, Fit, Shape
from gpu_scheduler.engine.slot import Hold, Slot, Vector, usable_mask
from gpu_scheduler.model.errors import InternalError, UnknownThing
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Request

WIDTH = CPU_LEVELS + 1
STEPS = WHOLE_MILLI // SHARE_STEP_MILLI + 1
MOST_SHARED_MILLI = WHOLE_MILLI - SHARE_STEP_MILLI
"""What is left of a device of which only memory is held: any share fits, a whole request not."""


NO_SLOT = Slot.__new__(Slot)
"""Stands where no node has the ordinal; no bucket ever points at it."""
NO_SLOT.bucket = -1


class Index:
    """All slots, and the buckets that find them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.slots: list[Slot] = []
        self.by_id: dict[str, Slot] = {}
        self.kinds: list[Kind] = []
        self.shapes: list[Shape] = []
        self.free_devices = 0
        self.version = 0
        self._kind_of: dict[tuple[object, ...], Kind] = {}
        self._shape_of: dict[Request, Shape] = {}
        self._counts: list[range] = []
        self._rows: list[int] = []
        self._buckets: list[int] = []
        self._part_rows: list[list[int]] = []
        self._part_steps: list[int] = []
        self._kind_bits: list[int] = []
        self._selected: dict[tuple[tuple[str, str], ...], int] = {}
        self._racks: dict[str, int] | None = None
        self.watch_vectors = False
        self.watch_sizes = False
        self.vectors: dict[Vector, int] = {}

    # --- nodes

    def add_node(self, node: Node) -> Slot:
        """Add a node, empty, or change one that is known; what it holds stays held."""
        known = self.by_id.get(node.id)
        if known is not None:
            return self._change_node(known, node)
        kind = self._kind(node)
        slot = Slot(node, kind)
        while len(self.slots) <= node.ordinal:
            self.slots.append(NO_SLOT)
        if self.slots[node.ordinal] is not NO_SLOT:
            raise InternalError(f"two nodes have the ordinal {node.ordinal}")
        self.slots[node.ordinal] = slot
        self.by_id[node.id] = slot
        while len(self._counts) <= kind.size:
            self._counts.append(range(0))
            self._counts = [range(c, len(self._counts)) for c in range(len(self._counts))]
        self._forget_selections()
        self._place(slot)
        return slot

    def remove_node(self, node_id: str) -> None:
        """Forget a node that holds nothing."""
        slot = self.slot(node_id)
        if not slot.is_empty:
            raise InternalError(f"node {node_id} is still in use")
        self._unplace(slot)
        del self.by_id[node_id]
        self.slots[slot.ordinal] = NO_SLOT
        self._forget_selections()

    def slot(self, node_id: str) -> Slot:
        """The slot of a node."""
        slot = self.by_id.get(node_id)
        if slot is None:
            raise UnknownThing(f"node '{node_id}' is not known")
        return slot

    def shape(self, request: Request) -> Shape:
        """The shape of a request, with every kind of node that came up since."""
        shape = self._shape_of.get(request)
        if shape is None:
            shape = self._shape_of[request] = Shape(len(self.shapes), request)
            self.shapes.append(shape)
        if shape.kinds_seen != len(self.kinds):
            shape.learn(self.kinds)
        return shape

    def selected(self, request: Request) -> int | None:
        """The nodes with the labels that the request wants; None for all."""
        if not request.node_labels:
            return None
        bits = self._selected.get(request.node_labels)
        if bits is None:
            bits = 0
            for slot in self.by_id.values():
                if set(request.node_labels) <= set(slot.node.labels):
                    bits |= slot.bit
            self._selected[request.node_labels] = bits
        return bits

    def racks(self) -> dict[str, int]:
        """The nodes of every rack, by the rack's name."""
        if self._racks is None:
            racks: dict[str, int] = {}
            for slot in self.by_id.values():
                racks[slot.node.rack] = racks.get(slot.node.rack, 0) | slot.bit
            self._racks = dict(sorted(racks.items()))
        return self._racks

    def of_kinds(self, shape: Shape) -> int:
        """The nodes that take work and could run a request when empty, as a bitmap."""
        bits = 0
        for kind_id in shape.by_kind:
            bits |= self._kind_bits[kind_id]
        return bits

    def slots_in(self, bits: int) -> Iterator[Slot]:
        """The slots of a bitmap, by rising ordinal."""
        while bits:
            below = bits - 1
            yield self.slots[(bits ^ below).bit_length() - 1]
            bits &= below

    @property
    def is_full(self) -> bool:
        """Tell whether no device has anything left that a request could take."""
        return not self.free_devices and not any(steps >> 1 for steps in self._part_steps)

    # --- search

    def find(self, shape: Shape, within: int | None = None, *, spread: bool = False) -> Hold | None:
        """The best place for a request by packing (or spreading), or None."""
        if shape.kinds_seen != len(self.kinds):
            shape.learn(self.kinds)
        if shape.labelled:
            selected = self.selected(shape.request) or 0
            within = selected if within is None else within & selected
        if shape.one_part:
            if spread:
                hold = self._find_whole(shape, 1, within, spread=True)
                return hold or self._find_part(shape, within)
            return self._find_part(shape, within) or self._find_whole(shape, 1, within)
        if spread:
            return self._find_whole(shape, shape.least, within, spread=True)
        return self._find_whole(shape, shape.least, within)

    def _find_whole(
        self, shape: Shape, least: int, within: int | None, *, spread: bool = False
    ) -> Hold | None:
        """Walk the buckets from the fewest free devices on (spreading: from the most)."""
        if self.free_devices < least or least >= len(self._counts):
            return None
        rows = self._rows
        for count in self._counts[least] if not spread else reversed(self._counts[least]):
            for fit in shape.fits:
                kind = fit.kind
                if count > kind.size:
                    continue
                levels = rows[kind.row + count] >> fit.level
                while levels:
                    step = (
                        levels.bit_length() - 1 if spread else (levels & -levels).bit_length() - 1
                    )
                    levels ^= 1 << step
                    bits = self._buckets[(kind.row + count) * WIDTH + fit.level + step]
                    if within is not None:
                        bits &= within
                    while bits:
                        below = bits - 1
                        hold = self.slots[(bits ^ below).bit_length() - 1].choose(shape, fit)
                        if hold is not None:
                            return hold
                        bits &= below
        return None

    def _find_part(self, shape: Shape, within: int | None) -> Hold | None:
        """The partly used device with the smallest rest that is enough, lowest ordinal on a tie."""
        union = 0
        for fit in shape.fits:
            union |= self._part_steps[fit.kind.id]
        union >>= shape.step
        found: Hold | None = None
        while union:
            step = (union & -union).bit_length() - 1
            union ^= 1 << step
            step += shape.step
            for fit in shape.fits:
                bits = self._part_rows[fit.kind.id][step]
                if bits:
                    hold = self._scan_parts(shape, fit, step, bits, within)
                    if hold is not None and (
                        found is None or hold.slot.ordinal < found.slot.ordinal
                    ):
                        found = hold
            if found is not None:
                return found
        return None

    def _scan_parts(
        self, shape: Shape, fit: Fit, step: int, bits: int, within: int | None
    ) -> Hold | None:
        """The first node of a row that passes the exact check."""
        if within is not None:
            bits &= within
        cpu = shape.cpu
        memory = shape.memory
        slots = self.slots
        while bits:
            below = bits - 1
            slot = slots[(bits ^ below).bit_length() - 1]
            if slot.free_cpu >= cpu and slot.free_memory >= memory:
                hold = slot.choose_part(shape, fit, step)
                if hold is not None:
                    return hold
            bits &= below
        return None

    # --- change

    def take(self, hold: Hold) -> None:
        """Book what a member holds."""
        slot = hold.slot
        slot.busy |= hold.mask
        slot.free_cpu -= hold.cpu
        slot.free_memory -= hold.memory
        if hold.parts:
            for position, share, memory_mb in hold.parts:
                entry = slot.shared.get(position)
                if entry is None:
                    device_mb = slot.kind.devices[position].memory_mb
                    slot.shared[position] = [WHOLE_MILLI - share, device_mb - memory_mb, 1]
                    slot.busy |= 1 << position
                    self._shift(slot, -1, (WHOLE_MILLI - share) // SHARE_STEP_MILLI)
                else:
                    left = entry[0]
                    entry[0] = left - share
                    entry[1] -= memory_mb
                    entry[2] += 1
                    self._shift(slot, left // SHARE_STEP_MILLI, entry[0] // SHARE_STEP_MILLI)
        elif hold.slices:
            for key in hold.slices:
                slot.mig[key] -= 1
        if self.watch_sizes:
            _count_size(slot, hold, 1)
        self._replace(slot)

    def give(self, hold: Hold) -> None:
        """Return what a member held."""
        slot = hold.slot
        slot.busy ^= hold.mask
        slot.free_cpu += hold.cpu
        slot.free_memory += hold.memory
        if hold.parts:
            for position, share, memory_mb in hold.parts:
                entry = slot.shared[position]
                left = entry[0]
                if entry[2] == 1:
                    del slot.shared[position]
                    slot.busy ^= 1 << position
                    self._shift(slot, left // SHARE_STEP_MILLI, -1)
                else:
                    entry[0] = left + share
                    entry[1] += memory_mb
                    entry[2] -= 1
                    self._shift(slot, left // SHARE_STEP_MILLI, entry[0] // SHARE_STEP_MILLI)
        elif hold.slices:
            for key in hold.slices:
                slot.mig[key] += 1
        if self.watch_sizes:
            _count_size(slot, hold, -1)
        self._replace(slot)

    # --- buckets

    def _replace(self, slot: Slot) -> None:
        """Move a slot to the bucket where it belongs now."""
        old = slot.bucket
        if old < 0:
            return
        kind = slot.kind
        row = kind.row + (slot.usable & ~slot.busy).bit_count()
        level = slot.free_cpu * CPU_LEVELS // kind.cpu_milli if kind.cpu_milli else CPU_LEVELS
        new = row * WIDTH + level
        if new != old:
            buckets = self._buckets
            bits = buckets[old] ^ slot.bit
            buckets[old] = bits
            old_row = old // WIDTH
            if not bits:
                self._rows[old_row] ^= 1 << old % WIDTH
            bits = buckets[new]
            if not bits:
                self._rows[row] |= 1 << level
            buckets[new] = bits | slot.bit
            slot.bucket = new
            self.free_devices += row - old_row
        if self.watch_vectors:
            self._replace_vector(slot)

    def _shift(self, slot: Slot, old: int, new: int) -> None:
        """One partly used device went from one rest to another (-1: it is not partly used)."""
        if slot.usable != slot.kind.everything or slot.bucket < 0:
            self._replace_parts(slot)
            return
        rows = self._part_rows[slot.kind.id]
        if new >= 0 and not slot.steps >> new & 1:
            bits = rows[new]
            if not bits:
                self._part_steps[slot.kind.id] |= 1 << new
            rows[new] = bits | slot.bit
            slot.steps |= 1 << new
        if old >= 0 and old != new:
            for entry in slot.shared.values():
                if entry[0] // SHARE_STEP_MILLI == old:
                    return
            bits = rows[old] ^ slot.bit
            rows[old] = bits
            slot.steps ^= 1 << old
            if not bits:
                self._part_steps[slot.kind.id] ^= 1 << old

    def _replace_parts(self, slot: Slot) -> None:
        """Work out all rests of a node afresh."""
        steps = 0
        if slot.bucket >= 0:
            usable = slot.usable
            for position, entry in slot.shared.items():
                if usable >> position & 1:
                    steps |= 1 << entry[0] // SHARE_STEP_MILLI
        changed = steps ^ slot.steps
        rows = self._part_rows[slot.kind.id]
        while changed:
            low = changed & -changed
            changed ^= low
            step = low.bit_length() - 1
            rows[step] ^= slot.bit
            if rows[step]:
                self._part_steps[slot.kind.id] |= low
            else:
                self._part_steps[slot.kind.id] &= ~low
        slot.steps = steps

    def _place(self, slot: Slot) -> None:
        """Put a slot that takes work into its bucket."""
        if not slot.takes_work:
            return
        kind = slot.kind
        count = (slot.usable & ~slot.busy).bit_count()
        level = slot.free_cpu * CPU_LEVELS // kind.cpu_milli if kind.cpu_milli else CPU_LEVELS
        slot.bucket = (kind.row + count) * WIDTH + level
        self._buckets[slot.bucket] |= slot.bit
        self._kind_bits[kind.id] |= slot.bit
        self._rows[kind.row + count] |= 1 << level
        self.free_devices += count
        self._replace_parts(slot)
        if self.watch_vectors:
            self._replace_vector(slot)

    def _unplace(self, slot: Slot) -> None:
        """Take a slot out of all buckets."""
        if slot.bucket < 0:
            return
        row, level = divmod(slot.bucket, WIDTH)
        self._buckets[slot.bucket] ^= slot.bit
        if not self._buckets[slot.bucket]:
            self._rows[row] ^= 1 << level
        self.free_devices -= row - slot.kind.row
        slot.bucket = -1
        self._kind_bits[slot.kind.id] ^= slot.bit
        self._replace_parts(slot)
        if self.watch_vectors:
            self._replace_vector(slot)

    def _change_node(self, slot: Slot, node: Node) -> Slot:
        if node.ordinal != slot.ordinal:
            raise InternalError(f"node {node.id} cannot change its ordinal")
        if Kind.signature(node) != Kind.signature(slot.node):
            raise InternalError(f"node {node.id} changed its hardware; remove and add it")
        self._unplace(slot)
        slot.node = node
        slot.usable = usable_mask(node, slot.kind)
        self._forget_selections()
        self._place(slot)
        return slot

    def _forget_selections(self) -> None:
        self._selected.clear()
        self._racks = None
        self.version += 1

    def _kind(self, node: Node) -> Kind:
        signature = Kind.signature(node)
        kind = self._kind_of.get(signature)
        if kind is None:
            kind = Kind(len(self.kinds), node, len(self._rows))
            self._kind_of[signature] = kind
            self.kinds.append(kind)
            self._rows.extend([0] * (kind.size + 1))
            self._buckets.extend([0] * ((kind.size + 1) * WIDTH))
            self._part_rows.append([0] * STEPS)
            self._part_steps.append(0)
            self._kind_bits.append(0)
        return kind

    # --- vectors: nodes that are free in exactly the same way, for scored rankings

    def watch(self, *, sizes: bool = False) -> None:
        """From now on keep nodes with the same free vector (and sizes of work) together."""
        self.watch_vectors = True
        self.watch_sizes = sizes
        for slot in self.by_id.values():
            self._replace_vector(slot)

    def _replace_vector(self, slot: Slot) -> None:
        old = slot.vector
        new = vector_of(slot) if slot.bucket >= 0 else None
        if old == new:
            return
        if old is not None:
            rest = self.vectors[old] ^ slot.bit
            if rest:
                self.vectors[old] = rest
            else:
                del self.vectors[old]
        if new is not None:
            self.vectors[new] = self.vectors.get(new, 0) | slot.bit
        slot.vector = new


def _count_size(slot: Slot, hold: Hold, change: int) -> None:
    """Remember which sizes of GPU requests are on a node: 0 for shares, else whole devices."""
    if hold.mask or hold.parts:
        size = hold.mask.bit_count()
        count = slot.sizes.get(size, 0) + change
        if count:
            slot.sizes[size] = count
        else:
            del slot.sizes[size]


def vector_of(slot: Slot) -> Vector:
    """Everything that tells nodes of one kind apart; see `Vector`."""
    kind = slot.kind
    shared = slot.shared
    left = []
    for position in range(kind.size):
        if not slot.usable >> position & 1:
            left.append(-1)
        elif position in shared:
            left.append(min(shared[position][0], MOST_SHARED_MILLI))
        else:
            left.append(0 if slot.busy >> position & 1 else WHOLE_MILLI)
    sizes = tuple(sorted(slot.sizes))
    plain = (kind.id, slot.free_cpu, slot.free_memory, tuple(left), sizes)
    rests: tuple[int, ...] = ()
    if shared and kind.has_memory:
        rests = tuple(shared[p][1] if p in shared else -1 for p in range(kind.size))
    if slot.mig:
        rests += tuple(slot.mig.values())
    return (*plain, rests) if rests else plain
