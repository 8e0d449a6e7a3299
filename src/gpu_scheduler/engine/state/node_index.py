"""Which nodes have what free: buckets of nodes as bitmaps, kept true for every search.

Nodes of one kind are bucketed by wholly free devices and by free CPU (in sixty-fourths), and
nodes with partly used devices by what is left of them. A search walks the buckets from the best
one on; the first node that passes the exact check wins, the lowest ordinal on a tie. So the
answer depends only on what is free, never on the way that led there.

A slot says at once what is free; buckets and rows follow when a search needs them, so what is tried
and undone between two searches costs nothing there. In a bitmap of nodes the lowest ordinal stands
at the highest bit, because the highest bit of a long integer is known at once and its lowest one
has to be worked out. Others combine such bitmaps with `slot.bit` and read them by `first_in` and
`slots_in`; they hold until a node makes them wider.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.engine.state.node_class import Kind
from gpu_scheduler.engine.state.node_resources import Hold, Slot, Vector, usable_mask
from gpu_scheduler.engine.state.request_shape import CPU_LEVELS, Fit, Shape
from gpu_scheduler.model.errors import InternalError, UnknownThing
from gpu_scheduler.model.node import Node, matches_labels
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Request

# --- Which nodes have partly used devices with how much left: one bitmap for every hundredth.
#
# A row has the nodes with a usable device of just that rest, whatever their kind, and a slot knows
# its rows (`steps`). A search walks the rows from the smallest rest that is enough. The rows follow
# the slots that changed only when a search needs them.

STEPS = WHOLE_MILLI // SHARE_STEP_MILLI + 1
_BIT_OF_REST = tuple(1 << rest // SHARE_STEP_MILLI for rest in range(WHOLE_MILLI + 1))
"""The bit of a rest's row, by the rest: looked up for every device at every change."""


class Parts:
    """The rows, and in `steps` which of them are not empty, the smallest rest at the lowest bit."""

    __slots__ = ("_slots", "changed", "rows", "steps")

    def __init__(self, slots: list[Slot]) -> None:
        """Start without partly used devices; `slots` is the list of the index itself."""
        self._slots = slots
        self.changed: list[Slot] = []
        self.rows = [0] * STEPS
        self.steps = 0

    def find(self, shape: Shape, within: int | None, *, spread: bool = False) -> Hold | None:
        """The device with the smallest rest that is enough; spreading, with the largest one.

        The lowest ordinal wins a tie.
        """
        if self.changed:
            self.settle()
        nodes = shape.nodes
        if within is not None:
            nodes = within if nodes is None else nodes & within
        cpu = shape.cpu
        memory = shape.memory
        slots = self._slots
        least = shape.step
        steps = self.steps >> least
        while steps:
            bit = 1 << steps.bit_length() - 1 if spread else steps & -steps
            steps ^= bit
            step = least + bit.bit_length() - 1
            bits = self.rows[step]
            if nodes is not None:
                bits &= nodes
            while bits:
                slot = slots[-bits.bit_length()]
                if slot.free_cpu >= cpu and slot.free_memory >= memory:
                    hold = slot.choose_part(shape, step)
                    if hold is not None:
                        return hold
                bits ^= slot.bit
        return None

    def settle(self) -> None:
        """Let the rows follow every slot that changed."""
        for slot in self.changed:
            slot.in_rows = True
            self.follow(slot)
        self.changed.clear()

    def follow(self, slot: Slot) -> None:
        """Put a slot into the rows where it belongs now; into none if no bucket has it."""
        steps = 0
        if slot.bucket >= 0:
            usable = slot.usable
            for position, entry in slot.shared.items():
                if usable >> position & 1:
                    steps |= _BIT_OF_REST[entry[0]]
        changed = steps ^ slot.steps
        slot.steps = steps
        while changed:
            step = changed.bit_length() - 1
            changed ^= 1 << step
            bits = self.rows[step] ^ slot.bit
            self.rows[step] = bits
            if not bits:
                self.steps ^= 1 << step
            elif steps >> step & 1:
                self.steps |= 1 << step

    def widen(self, growth: int) -> None:
        """Bitmaps of nodes have so many more bits from now on."""
        self.rows = [bits << growth for bits in self.rows]


# --- Which nodes have what free: buckets of nodes as bitmaps, kept true for every search.

WIDTH = CPU_LEVELS + 1
MOST_SHARED_MILLI = WHOLE_MILLI - SHARE_STEP_MILLI
"""What is left of a device of which only memory is held: any share fits, a whole request not."""
SPARE_NUMBERS = 10_000
"""So many vectors that no node has now may be remembered, beside twice as many as there are."""


FEWEST_BITS = 64
NO_SLOT = Slot.__new__(Slot)
"""Stands where no node has the ordinal; no bucket ever points at it."""
NO_SLOT.bucket = -1


class Index:
    """All slots, and the buckets that find them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.slots: list[Slot] = []
        """By ordinal, as many as a bitmap has bits: `slots[-bits.bit_length()]` is its first."""
        self.by_id: dict[str, Slot] = {}
        self.kinds: list[Kind] = []
        self.version = 0
        self._free_devices = 0
        self._kind_of: dict[tuple[object, ...], Kind] = {}
        self._shape_of: dict[Request, Shape] = {}
        self._next_shape = 0
        self._counts: list[range] = []
        self._rows: list[int] = []
        self._buckets: list[int] = []
        self._parts = Parts(self.slots)
        self._changed: list[Slot] = []
        self._kind_bits: list[int] = []
        self._selected: dict[tuple[tuple[str, str], ...], int] = {}
        self._racks: dict[str, int] | None = None
        self.watch_vectors = False
        self.watch_sizes = False
        self._vectors: dict[int, int] = {}
        self._numbers: dict[Vector, int] = {}
        self._next_number = 0

    # --- nodes

    def add_node(self, node: Node) -> Slot:
        """Add a node, empty, or change one that is known; what it holds stays held."""
        known = self.by_id.get(node.id)
        if known is not None:
            return self._change_node(known, node)
        kind = self._kind(node)
        slot = Slot(node, kind)
        if node.ordinal >= self.width:
            self._widen(width_for(node.ordinal))
        if self.slots[node.ordinal] is not NO_SLOT:
            raise InternalError(f"two nodes have the ordinal {node.ordinal}")
        slot.bit = 1 << self.width - 1 - node.ordinal
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
            shape = self._shape_of[request] = Shape(self._next_shape, request)
            self._next_shape += 1
        if shape.kinds_seen != len(self.kinds):
            shape.learn(self.kinds)
        return shape

    @property
    def shape_count(self) -> int:
        """How many shapes are remembered."""
        return len(self._shape_of)

    def forget_shapes(self, kept: set[int]) -> None:
        """Remember only these shapes; the id of another is never given out again."""
        known = self._shape_of.items()
        self._shape_of = {request: shape for request, shape in known if shape.id in kept}

    def selected(self, request: Request) -> int | None:
        """The nodes with the labels that the request wants; None for all."""
        if not request.node_labels:
            return None
        bits = self._selected.get(request.node_labels)
        if bits is None:
            bits = 0
            for slot in self.by_id.values():
                if matches_labels(request.node_labels, slot.node.id, slot.node.labels):
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
            slot = self.slots[-bits.bit_length()]
            yield slot
            bits ^= slot.bit

    def first_in(self, bits: int) -> int:
        """The lowest ordinal of a bitmap."""
        return self.width - bits.bit_length()

    @property
    def free_devices(self) -> int:
        """How many devices that take work are wholly free."""
        self._settle()
        return self._free_devices

    @property
    def vectors(self) -> dict[int, int]:
        """The nodes that are free in exactly the same way, by the number of their vector.

        Kept only while somebody watches. A number never stands for another vector.
        """
        self._settle()
        return self._vectors

    @property
    def is_full(self) -> bool:
        """Tell whether no device has anything left that a request could take."""
        self._parts.settle()
        return not self.free_devices and not self._parts.steps >> 1

    @property
    def width(self) -> int:
        """How many bits a bitmap of nodes has."""
        return len(self.slots)

    # --- search

    def find(self, shape: Shape, within: int | None = None, *, spread: bool = False) -> Hold | None:
        """The best place for a request by packing (or spreading), or None."""
        if shape.version != self.version:
            self._renew(shape)
        if shape.labelled:
            selected = self.selected(shape.request) or 0
            within = selected if within is None else within & selected
        if not shape.one_part:
            return self._find_whole(shape, shape.least, within, spread=spread)
        if spread:
            hold = self._find_whole(shape, 1, within, spread=True)
            return hold or self._parts.find(shape, within, spread=True)
        return self._parts.find(shape, within) or self._find_whole(shape, 1, within)

    def _find_whole(
        self, shape: Shape, least: int, within: int | None, *, spread: bool = False
    ) -> Hold | None:
        """Walk the buckets from the fewest free devices on (spreading: from the most)."""
        if self._changed:
            self._settle()
        if self._free_devices < least or least >= len(self._counts):
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
                    hold = self._choose(shape, fit, bits, spread=spread)
                    if hold is not None:
                        return hold
        return None

    def _choose(self, shape: Shape, fit: Fit, bits: int, *, spread: bool) -> Hold | None:
        """The first node of a bitmap that passes the exact check.

        One share is looked for here only to open a device; those in use are found by their rest.
        """
        while bits:
            slot = self.slots[-bits.bit_length()]
            if shape.one_part:
                hold = slot.open_device(shape, fit)
            else:
                hold = slot.choose(shape, fit, spread=spread)
            if hold is not None:
                return hold
            bits ^= slot.bit
        return None

    def _renew(self, shape: Shape) -> None:
        """Tell a shape which kinds of nodes there are now, and which nodes are of its kinds."""
        if shape.kinds_seen != len(self.kinds):
            shape.learn(self.kinds)
        fits_all = len(shape.by_kind) == len(self.kinds)
        shape.nodes = None if fits_all else self.of_kinds(shape)
        shape.version = self.version

    # --- change

    def take(self, hold: Hold) -> None:
        """ControlState what a member holds."""
        slot = hold.slot
        slot.busy |= hold.mask
        slot.free_cpu -= hold.cpu
        slot.free_memory -= hold.memory
        if hold.parts:
            slot.take_parts(hold.parts)
            if slot.in_rows:
                slot.in_rows = False
                self._parts.changed.append(slot)
        elif hold.slices:
            for key in hold.slices:
                slot.mig[key] -= 1
        if self.watch_sizes:
            _count_size(slot, hold, 1)
        if slot.in_place:
            slot.in_place = False
            self._changed.append(slot)

    def give(self, hold: Hold) -> None:
        """Return what a member held."""
        slot = hold.slot
        slot.busy ^= hold.mask
        slot.free_cpu += hold.cpu
        slot.free_memory += hold.memory
        if hold.parts:
            slot.give_parts(hold.parts)
            if slot.in_rows:
                slot.in_rows = False
                self._parts.changed.append(slot)
        elif hold.slices:
            for key in hold.slices:
                slot.mig[key] += 1
        if self.watch_sizes:
            _count_size(slot, hold, -1)
        if slot.in_place:
            slot.in_place = False
            self._changed.append(slot)

    def set_usable(self, slot: Slot, usable: int) -> None:
        """Give out just these devices of a node from now on; its holds stay."""
        slot.usable = usable
        if slot.in_place:
            slot.in_place = False
            self._changed.append(slot)
        if slot.in_rows:
            slot.in_rows = False
            self._parts.changed.append(slot)

    def settle(self) -> None:
        """Let buckets and rows follow all that changed; searches do that by themselves."""
        self._settle()
        self._parts.settle()

    # --- buckets

    def _settle(self) -> None:
        """Move every slot that changed to the bucket where it belongs now."""
        buckets = self._buckets
        for slot in self._changed:
            slot.in_place = True
            kind = slot.kind
            row = kind.row + (slot.usable & ~slot.busy).bit_count()
            level = slot.free_cpu * CPU_LEVELS // kind.cpu_unit
            old, new = slot.bucket, row * WIDTH + level
            if new != old:
                old_row = old // WIDTH
                bits = buckets[old] ^ slot.bit
                buckets[old] = bits
                if not bits:
                    self._rows[old_row] ^= 1 << old % WIDTH
                bits = buckets[new]
                buckets[new] = bits | slot.bit
                if not bits:
                    self._rows[row] |= 1 << level
                slot.bucket = new
                self._free_devices += row - old_row
            if self.watch_vectors:
                self._replace_vector(slot)
        self._changed.clear()

    def _place(self, slot: Slot) -> None:
        """Put a slot that takes work into its bucket."""
        if not slot.takes_work:
            return
        kind = slot.kind
        count = (slot.usable & ~slot.busy).bit_count()
        level = slot.free_cpu * CPU_LEVELS // kind.cpu_unit
        slot.bucket = (kind.row + count) * WIDTH + level
        slot.in_place = slot.in_rows = True
        self._buckets[slot.bucket] |= slot.bit
        self._kind_bits[kind.id] |= slot.bit
        self._rows[kind.row + count] |= 1 << level
        self._free_devices += count
        self._parts.follow(slot)
        if self.watch_vectors:
            self._replace_vector(slot)

    def _unplace(self, slot: Slot) -> None:
        """Take a slot out of all buckets."""
        if slot.bucket < 0:
            return
        self.settle()
        row, level = divmod(slot.bucket, WIDTH)
        self._buckets[slot.bucket] ^= slot.bit
        if not self._buckets[slot.bucket]:
            self._rows[row] ^= 1 << level
        self._free_devices -= row - slot.kind.row
        slot.bucket = -1
        slot.in_place = slot.in_rows = False
        self._kind_bits[slot.kind.id] ^= slot.bit
        self._parts.follow(slot)
        if self.watch_vectors:
            self._replace_vector(slot)

    def _widen(self, width: int) -> None:
        """Make place for higher ordinals: they stand below, so every bitmap moves up."""
        growth = width - self.width
        self.slots += [NO_SLOT] * growth
        for slot in self.by_id.values():
            slot.bit <<= growth
        self._buckets = [bits << growth for bits in self._buckets]
        self._kind_bits = [bits << growth for bits in self._kind_bits]
        self._parts.widen(growth)
        self._vectors = {number: bits << growth for number, bits in self._vectors.items()}

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
            number = slot.vector_number
            rest = self._vectors[number] ^ slot.bit
            if rest:
                self._vectors[number] = rest
            else:
                del self._vectors[number]
        if new is not None:
            slot.vector_number = number = self._number_of(new)
            self._vectors[number] = self._vectors.get(number, 0) | slot.bit
        slot.vector = new

    def _number_of(self, vector: Vector) -> int:
        """Whoever looks at all vectors would hash each of them; numbers cost next to nothing."""
        number = self._numbers.get(vector)
        if number is None:
            if len(self._numbers) > SPARE_NUMBERS + 2 * len(self._vectors):
                self._numbers = {v: n for v, n in self._numbers.items() if n in self._vectors}
            number = self._numbers[vector] = self._next_number
            self._next_number += 1
        return number


def width_for(ordinal: int) -> int:
    """The bits of a bitmap that has an ordinal: up to an eighth more, so that few nodes widen it.

    The steps are fixed, so the width does not depend on which node came first.
    """
    width = FEWEST_BITS
    while width <= ordinal:
        width += width // 8
    return width


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
