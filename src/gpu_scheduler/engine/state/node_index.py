"""Which nodes have what free: buckets of nodes as bitmaps, kept true for every search.

Nodes of one class are bucketed by wholly free devices and by free CPU (in sixty-fourths), and
nodes with partly used devices by what is left of them. A search walks the buckets from the best
one on; the first node that passes the exact check wins, the lowest ordinal on a tie. So the
answer depends only on what is free, never on the way that led there.

`NodeResources` always says what is free; buckets and rows follow when a search needs them, so what
is tried and undone between two searches costs nothing there. In a bitmap of nodes the lowest
ordinal is the highest bit, because the highest bit of a long integer is known at once and its
lowest one has to be worked out. Other modules combine such bitmaps with `resources.bit` and read
them by `first_in` and `nodes_in`; a bitmap is valid until a new node makes the bitmaps wider.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.engine.state.equivalence_classes import CPU_LEVELS, Fit, NodeClass, RequestShape
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources, Vector, usable_mask
from gpu_scheduler.model.errors import InternalError, UnknownThing
from gpu_scheduler.model.node import Node, matches_labels
from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Request

STEPS = WHOLE_MILLI // SHARE_STEP_MILLI + 1
_BIT_OF_REST = tuple(1 << rest // SHARE_STEP_MILLI for rest in range(WHOLE_MILLI + 1))
"""The bit of a rest's row, by the rest: looked up for every device at every change."""


class PartialDevices:
    """Which nodes have partly used devices with how much left: one bitmap (row) per hundredth.

    A row has the nodes, of any class, with a usable device of exactly that rest; a node knows its
    rows (`steps`). A search walks the rows from the smallest rest that is enough. `steps` has a bit
    for every row that is not empty, the smallest rest at the lowest bit.
    """

    __slots__ = ("_nodes", "changed", "rows", "steps")

    def __init__(self, nodes: list[NodeResources]) -> None:
        """Start without partly used devices; `nodes` is the list of the index itself."""
        self._nodes = nodes
        self.changed: list[NodeResources] = []
        self.rows = [0] * STEPS
        self.steps = 0

    def find(
        self, shape: RequestShape, within: int | None, *, spread: bool = False
    ) -> Grant | None:
        """The device with the smallest rest that is enough; spreading, with the largest one.

        The lowest ordinal wins a tie.
        """
        if self.changed:
            self.refresh()
        nodes = shape.nodes
        if within is not None:
            nodes = within if nodes is None else nodes & within
        cpu = shape.cpu
        memory = shape.memory
        all_nodes = self._nodes
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
                resources = all_nodes[-bits.bit_length()]
                if resources.free_cpu >= cpu and resources.free_memory >= memory:
                    grant = resources.choose_part(shape, step)
                    if grant is not None:
                        return grant
                bits ^= resources.bit
        return None

    def refresh(self) -> None:
        """Update the rows for every node that changed."""
        for resources in self.changed:
            resources.in_rows = True
            self.follow(resources)
        self.changed.clear()

    def follow(self, resources: NodeResources) -> None:
        """Put a node into the rows where it belongs now; into none if no bucket has it."""
        steps = 0
        if resources.bucket >= 0:
            usable = resources.usable
            for position, entry in resources.shared.items():
                if usable >> position & 1:
                    steps |= _BIT_OF_REST[entry[0]]
        changed = steps ^ resources.steps
        resources.steps = steps
        while changed:
            step = changed.bit_length() - 1
            changed ^= 1 << step
            bits = self.rows[step] ^ resources.bit
            self.rows[step] = bits
            if not bits:
                self.steps ^= 1 << step
            elif steps >> step & 1:
                self.steps |= 1 << step

    def widen(self, growth: int) -> None:
        """Widen the bitmaps of nodes by this many bits."""
        self.rows = [bits << growth for bits in self.rows]


WIDTH = CPU_LEVELS + 1
"""How many buckets one row has: one for every level of free CPU."""
MOST_SHARED_MILLI = WHOLE_MILLI - SHARE_STEP_MILLI
"""The rest of a device of which only memory is allocated: any share fits, a whole GPU does not."""
SPARE_NUMBERS = 10_000
"""So many vectors that no node has now may be remembered, beside twice as many as there are."""
FEWEST_BITS = 64
NO_NODE = NodeResources.__new__(NodeResources)
"""Stands where no node has the ordinal; no bucket ever points at it."""
NO_NODE.bucket = -1


class NodeIndex:
    """The resources of all nodes, and the buckets that find them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.nodes: list[NodeResources] = []
        """By ordinal, as many as a bitmap has bits: `nodes[-bits.bit_length()]` is its first."""
        self.by_id: dict[str, NodeResources] = {}
        self.node_classes: list[NodeClass] = []
        self.version = 0
        self._free_devices = 0
        self._class_of: dict[tuple[object, ...], NodeClass] = {}
        self._shape_of: dict[Request, RequestShape] = {}
        self._next_shape = 0
        self._counts: list[range] = []
        self._rows: list[int] = []
        self._buckets: list[int] = []
        self._parts = PartialDevices(self.nodes)
        self._changed: list[NodeResources] = []
        self._class_bits: list[int] = []
        self._selected: dict[tuple[tuple[str, str], ...], int] = {}
        self._racks: dict[str, int] | None = None
        self.watch_vectors = False
        self.watch_sizes = False
        self._vectors: dict[int, int] = {}
        self._numbers: dict[Vector, int] = {}
        self._next_number = 0

    # Nodes

    def add_node(self, node: Node) -> NodeResources:
        """Add a node, empty, or change one that is known; its allocations stay."""
        known = self.by_id.get(node.id)
        if known is not None:
            return self._change_node(known, node)
        node_class = self._node_class(node)
        resources = NodeResources(node, node_class)
        if node.ordinal >= self.width:
            self._widen(width_for(node.ordinal))
        if self.nodes[node.ordinal] is not NO_NODE:
            raise InternalError(f"two nodes have the ordinal {node.ordinal}")
        resources.bit = 1 << self.width - 1 - node.ordinal
        self.nodes[node.ordinal] = resources
        self.by_id[node.id] = resources
        while len(self._counts) <= node_class.size:
            self._counts.append(range(0))
            self._counts = [range(c, len(self._counts)) for c in range(len(self._counts))]
        self._forget_selections()
        self._place(resources)
        return resources

    def remove_node(self, node_id: str) -> None:
        """Forget a node that holds nothing."""
        resources = self.resources(node_id)
        if not resources.is_empty:
            raise InternalError(f"node {node_id} is still in use")
        self._unplace(resources)
        del self.by_id[node_id]
        self.nodes[resources.ordinal] = NO_NODE
        self._forget_selections()

    def resources(self, node_id: str) -> NodeResources:
        """The resources of a node."""
        resources = self.by_id.get(node_id)
        if resources is None:
            raise UnknownThing(f"node '{node_id}' is not known")
        return resources

    def shape(self, request: Request) -> RequestShape:
        """The shape of a request, with every node class that was added since."""
        shape = self._shape_of.get(request)
        if shape is None:
            shape = self._shape_of[request] = RequestShape(self._next_shape, request)
            self._next_shape += 1
        if shape.node_classes_seen != len(self.node_classes):
            shape.learn(self.node_classes)
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
            for resources in self.by_id.values():
                if matches_labels(request.node_labels, resources.node.id, resources.node.labels):
                    bits |= resources.bit
            self._selected[request.node_labels] = bits
        return bits

    def racks(self) -> dict[str, int]:
        """The nodes of every rack, by the rack's name."""
        if self._racks is None:
            racks: dict[str, int] = {}
            for resources in self.by_id.values():
                racks[resources.node.rack] = racks.get(resources.node.rack, 0) | resources.bit
            self._racks = dict(sorted(racks.items()))
        return self._racks

    def of_node_classes(self, shape: RequestShape) -> int:
        """The nodes that take work and could run a request when empty, as a bitmap."""
        bits = 0
        for class_id in shape.by_node_class:
            bits |= self._class_bits[class_id]
        return bits

    def nodes_in(self, bits: int) -> Iterator[NodeResources]:
        """The resources of the nodes of a bitmap, by rising ordinal."""
        while bits:
            resources = self.nodes[-bits.bit_length()]
            yield resources
            bits ^= resources.bit

    def by_ordinal(self) -> list[NodeResources]:
        """The resources of all nodes, by rising ordinal."""
        return [resources for resources in self.nodes if resources is not NO_NODE]

    def first_in(self, bits: int) -> int:
        """The lowest ordinal of a bitmap."""
        return self.width - bits.bit_length()

    @property
    def free_devices(self) -> int:
        """How many devices that take work are wholly free."""
        self._refresh_buckets()
        return self._free_devices

    @property
    def vectors(self) -> dict[int, int]:
        """The nodes that are free in exactly the same way, by the number of their vector.

        Kept only after `watch`. A number is never used for another vector.
        """
        self._refresh_buckets()
        return self._vectors

    @property
    def is_full(self) -> bool:
        """Tell whether no device has anything left that a request could take."""
        if self.free_devices:
            return False
        self._parts.refresh()
        return not self._parts.steps >> 1

    @property
    def width(self) -> int:
        """How many bits a bitmap of nodes has."""
        return len(self.nodes)

    # Search

    def find(
        self, shape: RequestShape, within: int | None = None, *, spread: bool = False
    ) -> Grant | None:
        """The best place for a request by packing (or spreading), or None."""
        if shape.version != self.version:
            self._renew(shape)
        if shape.labelled:
            selected = self.selected(shape.request) or 0
            within = selected if within is None else within & selected
        if not shape.one_part:
            return self._find_whole(shape, shape.least, within, spread=spread)
        if spread:
            grant = self._find_whole(shape, 1, within, spread=True)
            return grant or self._parts.find(shape, within, spread=True)
        return self._parts.find(shape, within) or self._find_whole(shape, 1, within)

    def _find_whole(
        self, shape: RequestShape, least: int, within: int | None, *, spread: bool = False
    ) -> Grant | None:
        """Walk the buckets from the fewest free devices on (spreading: from the most)."""
        if self._changed:
            self._refresh_buckets()
        if self._free_devices < least or least >= len(self._counts):
            return None
        rows = self._rows
        for count in self._counts[least] if not spread else reversed(self._counts[least]):
            for fit in shape.fits:
                node_class = fit.node_class
                if count > node_class.size:
                    continue
                levels = rows[node_class.row + count] >> fit.level
                while levels:
                    step = (
                        levels.bit_length() - 1 if spread else (levels & -levels).bit_length() - 1
                    )
                    levels ^= 1 << step
                    bits = self._buckets[(node_class.row + count) * WIDTH + fit.level + step]
                    if within is not None:
                        bits &= within
                    grant = self._choose(shape, fit, bits, spread=spread)
                    if grant is not None:
                        return grant
        return None

    def _choose(self, shape: RequestShape, fit: Fit, bits: int, *, spread: bool) -> Grant | None:
        """The first node of a bitmap that passes the exact check.

        One share is looked for here only to open a device; those in use are found by their rest.
        """
        while bits:
            resources = self.nodes[-bits.bit_length()]
            if shape.one_part:
                grant = resources.open_device(shape, fit)
            else:
                grant = resources.choose(shape, fit, spread=spread)
            if grant is not None:
                return grant
            bits ^= resources.bit
        return None

    def _renew(self, shape: RequestShape) -> None:
        """Update the node classes of a shape, and the nodes of these classes."""
        if shape.node_classes_seen != len(self.node_classes):
            shape.learn(self.node_classes)
        fits_all = len(shape.by_node_class) == len(self.node_classes)
        shape.nodes = None if fits_all else self.of_node_classes(shape)
        shape.version = self.version

    # Change

    def take(self, grant: Grant) -> None:
        """Take what a member holds."""
        resources = grant.resources
        resources.busy |= grant.mask
        resources.free_cpu -= grant.cpu
        resources.free_memory -= grant.memory
        if grant.parts:
            resources.take_parts(grant.parts)
            if resources.in_rows:
                resources.in_rows = False
                self._parts.changed.append(resources)
        elif grant.slices:
            for key in grant.slices:
                resources.mig[key] -= 1
        if self.watch_sizes:
            _count_size(resources, grant, 1)
        if resources.in_place:
            resources.in_place = False
            self._changed.append(resources)

    def give(self, grant: Grant) -> None:
        """Give back the resources of a member."""
        resources = grant.resources
        resources.busy ^= grant.mask
        resources.free_cpu += grant.cpu
        resources.free_memory += grant.memory
        if grant.parts:
            resources.give_parts(grant.parts)
            if resources.in_rows:
                resources.in_rows = False
                self._parts.changed.append(resources)
        elif grant.slices:
            for key in grant.slices:
                resources.mig[key] += 1
        if self.watch_sizes:
            _count_size(resources, grant, -1)
        if resources.in_place:
            resources.in_place = False
            self._changed.append(resources)

    def set_usable(self, resources: NodeResources, usable: int) -> None:
        """Give out only these devices of a node from now on; its grants stay."""
        resources.usable = usable
        if resources.in_place:
            resources.in_place = False
            self._changed.append(resources)
        if resources.in_rows:
            resources.in_rows = False
            self._parts.changed.append(resources)

    def refresh(self) -> None:
        """Update buckets and rows for all that changed; searches do that by themselves."""
        self._refresh_buckets()
        self._parts.refresh()

    # Buckets

    def _refresh_buckets(self) -> None:
        """Move every node that changed to the bucket where it belongs now."""
        buckets = self._buckets
        for resources in self._changed:
            resources.in_place = True
            node_class = resources.node_class
            row = node_class.row + (resources.usable & ~resources.busy).bit_count()
            level = resources.free_cpu * CPU_LEVELS // node_class.cpu_unit
            old, new = resources.bucket, row * WIDTH + level
            if new != old:
                old_row = old // WIDTH
                bits = buckets[old] ^ resources.bit
                buckets[old] = bits
                if not bits:
                    self._rows[old_row] ^= 1 << old % WIDTH
                bits = buckets[new]
                buckets[new] = bits | resources.bit
                if not bits:
                    self._rows[row] |= 1 << level
                resources.bucket = new
                self._free_devices += row - old_row
            if self.watch_vectors:
                self._replace_vector(resources)
        self._changed.clear()

    def _place(self, resources: NodeResources) -> None:
        """Put a node that takes work into its bucket."""
        if not resources.takes_work:
            return
        node_class = resources.node_class
        count = (resources.usable & ~resources.busy).bit_count()
        level = resources.free_cpu * CPU_LEVELS // node_class.cpu_unit
        resources.bucket = (node_class.row + count) * WIDTH + level
        resources.in_place = resources.in_rows = True
        self._buckets[resources.bucket] |= resources.bit
        self._class_bits[node_class.id] |= resources.bit
        self._rows[node_class.row + count] |= 1 << level
        self._free_devices += count
        self._parts.follow(resources)
        if self.watch_vectors:
            self._replace_vector(resources)

    def _unplace(self, resources: NodeResources) -> None:
        """Take a node out of all buckets."""
        if resources.bucket < 0:
            return
        self.refresh()
        row, level = divmod(resources.bucket, WIDTH)
        self._buckets[resources.bucket] ^= resources.bit
        if not self._buckets[resources.bucket]:
            self._rows[row] ^= 1 << level
        self._free_devices -= row - resources.node_class.row
        resources.bucket = -1
        resources.in_place = resources.in_rows = False
        self._class_bits[resources.node_class.id] ^= resources.bit
        self._parts.follow(resources)
        if self.watch_vectors:
            self._replace_vector(resources)

    def _widen(self, width: int) -> None:
        """Make room for higher ordinals: they are lower bits, so every bitmap moves up."""
        growth = width - self.width
        self.nodes += [NO_NODE] * growth
        for resources in self.by_id.values():
            resources.bit <<= growth
        self._buckets = [bits << growth for bits in self._buckets]
        self._class_bits = [bits << growth for bits in self._class_bits]
        self._parts.widen(growth)
        self._vectors = {number: bits << growth for number, bits in self._vectors.items()}

    def _change_node(self, resources: NodeResources, node: Node) -> NodeResources:
        if node.ordinal != resources.ordinal:
            raise InternalError(f"node {node.id} cannot change its ordinal")
        if NodeClass.signature(node) != NodeClass.signature(resources.node):
            raise InternalError(f"node {node.id} changed its hardware; remove and add it")
        self._unplace(resources)
        resources.node = node
        resources.usable = usable_mask(node, resources.node_class)
        self._forget_selections()
        self._place(resources)
        return resources

    def _forget_selections(self) -> None:
        self._selected.clear()
        self._racks = None
        self.version += 1

    def _node_class(self, node: Node) -> NodeClass:
        signature = NodeClass.signature(node)
        node_class = self._class_of.get(signature)
        if node_class is None:
            node_class = NodeClass(len(self.node_classes), node, len(self._rows))
            self._class_of[signature] = node_class
            self.node_classes.append(node_class)
            self._rows.extend([0] * (node_class.size + 1))
            self._buckets.extend([0] * ((node_class.size + 1) * WIDTH))
            self._class_bits.append(0)
        return node_class

    # Vectors: nodes that are free in exactly the same way, for scored rankings

    def watch(self, *, sizes: bool = False) -> None:
        """From now on keep nodes with the same free vector (and sizes of work) together."""
        self.watch_vectors = True
        self.watch_sizes = sizes
        for resources in self.by_id.values():
            self._replace_vector(resources)

    def _replace_vector(self, resources: NodeResources) -> None:
        old = resources.vector
        new = vector_of(resources) if resources.bucket >= 0 else None
        if old == new:
            return
        if old is not None:
            number = resources.vector_number
            rest = self._vectors[number] ^ resources.bit
            if rest:
                self._vectors[number] = rest
            else:
                del self._vectors[number]
        if new is not None:
            resources.vector_number = number = self._number_of(new)
            self._vectors[number] = self._vectors.get(number, 0) | resources.bit
        resources.vector = new

    def _number_of(self, vector: Vector) -> int:
        """A number for a vector: hashing a number costs much less than hashing a vector."""
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


def _count_size(resources: NodeResources, grant: Grant, change: int) -> None:
    """Remember which sizes of GPU requests are on a node: 0 for shares, else whole devices."""
    if grant.mask or grant.parts:
        size = grant.mask.bit_count()
        count = resources.sizes.get(size, 0) + change
        if count:
            resources.sizes[size] = count
        else:
            del resources.sizes[size]


def vector_of(resources: NodeResources) -> Vector:
    """Everything in which nodes of one class differ; see `Vector`."""
    node_class = resources.node_class
    shared = resources.shared
    left = []
    for position in range(node_class.size):
        if not resources.usable >> position & 1:
            left.append(-1)
        elif position in shared:
            left.append(min(shared[position][0], MOST_SHARED_MILLI))
        else:
            left.append(0 if resources.busy >> position & 1 else WHOLE_MILLI)
    sizes = tuple(sorted(resources.sizes))
    plain = (node_class.id, resources.free_cpu, resources.free_memory, tuple(left), sizes)
    rests: tuple[int, ...] = ()
    if shared and node_class.has_memory:
        rests = tuple(shared[p][1] if p in shared else -1 for p in range(node_class.size))
    if resources.mig:
        rests += tuple(resources.mig.values())
    return (*plain, rests) if rests else plain
