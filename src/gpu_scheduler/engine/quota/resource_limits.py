"""One resource (a column) of the quota tree: what each node holds, may hold, and can reclaim.

In: the limits of the nodes. Out: answers about one resource, such as GPUs of one model in
milli-GPUs. What a node holds includes its children. Idle guaranteed GPUs are lent to the other
nodes of the same parent, and by the parent in turn; docs/explanation/preemption.md says why
reclaiming ends. Invariant: the sums that a node keeps of its children are up to date.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

Key = Hashable
"""Names a node: a name in the tree, a tenant, or a pool."""
Reclaimed = dict[tuple[str, Key], int]
"""What is being reclaimed of each resource from each node: still held, but not for long."""
ROOT: Final = ("root",)
"""The key of the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The limits of one node in one model.

    It lends only what is left beyond `kept` (what its jobs use at least, or will soon); its whole
    guarantee, if that is 0. With `yields`, entitled work may also take a job of it that is larger
    than what it borrows.
    """

    key: Key
    parent: Key = ROOT
    guaranteed: int = 0
    maximum: int | None = None
    kept: int = 0
    yields: bool = False


class Reserve(Enum):
    """What nodes keep for themselves from a job of another node.

    WITHHELD: what they do not lend; from jobs that borrow. PROMISED: all that they or any node
    below them are guaranteed and do not hold; from jobs that cannot be preempted. IDLE: what they
    are guaranteed and do not hold; from jobs that reclaim (what they lent among themselves they get
    back from each other).
    """

    WITHHELD = auto()
    PROMISED = auto()
    IDLE = auto()


class Node:
    """A node with what it holds now. `path` is this node and all above it, the root last."""

    __slots__ = (
        "children_idle",
        "children_promised",
        "children_withheld",
        "key",
        "limits",
        "parent",
        "path",
        "promised",
        "used",
        "waiting",
        "withheld",
    )

    def __init__(self, limits: NodeLimits, parent: Node | None) -> None:
        """Start with nothing held."""
        self.key = limits.key
        self.limits = limits
        self.parent = parent
        self.path: tuple[Node, ...] = (self,) if parent is None else (self, *parent.path)
        self.used = 0
        self.waiting = 0
        self.withheld = 0
        self.promised = 0
        self.children_idle = 0
        self.children_promised = 0
        self.children_withheld = 0

    @property
    def idle(self) -> int:
        """What it is guaranteed and does not hold."""
        return max(0, self.limits.guaranteed - self.used)

    @property
    def borrowed(self) -> int:
        """What it holds beyond its guarantee: so much can be reclaimed."""
        return max(0, self.used - self.limits.guaranteed)

    def reserved_beside(self, child: Node | None, reserve: Reserve) -> int:
        """What the other children keep for themselves."""
        if reserve is Reserve.WITHHELD:
            return self.children_withheld - (0 if child is None else child.withheld)
        if reserve is Reserve.PROMISED:
            return self.children_promised - (0 if child is None else child.promised)
        return self.children_idle - (0 if child is None else child.idle)

    def add(self, milli: int) -> None:
        """Hold so much more (or less), and so do all above it."""
        for node in self.path:
            idle = node.idle
            node.used += milli
            if node.parent is not None:
                node.parent.children_idle += node.idle - idle
        self.update()

    def wait(self, milli: int) -> None:
        """So much more work waits (or less): what it needs is not lent."""
        self.waiting += milli
        self.update()

    def reserves(self) -> tuple[int, int]:
        """What this node and those below do not lend, and what they lend at most until asked."""
        limits = self.limits
        kept = min(limits.guaranteed, max(limits.kept, self.used + max(0, self.waiting)))
        withheld = max(0, kept - self.used, self.children_withheld)
        return withheld, max(self.idle, self.children_promised)

    def update(self) -> None:
        """Compute the reserves of this node and those above it afresh."""
        for node in self.path:
            withheld, promised = node.reserves()
            if node.parent is not None:
                node.parent.children_withheld += withheld - node.withheld
                node.parent.children_promised += promised - node.promised
            node.withheld, node.promised = withheld, promised


@dataclass(frozen=True, slots=True)
class Entitlement:
    """The right of a job within a guarantee to reclaim what others borrowed.

    `above` are the nodes below which it may reclaim: on the path of its node, above the one whose
    guarantee covers the job, up to the first that exceeds its own guarantee.
    """

    above: frozenset[Key]
    path: frozenset[Key]


class Column:
    """The nodes of a tree for one resource. `capacity` is what the root has."""

    def __init__(
        self, name: str, limits: Iterable[NodeLimits], capacity: int | None = None
    ) -> None:
        """Parents need not come before their children; without a capacity, it is their sum."""
        self.name = name
        by_key = {each.key: each for each in limits}
        if capacity is None:
            tops = (each for each in by_key.values() if each.parent == ROOT)
            capacity = sum(each.guaranteed for each in tops)
        self.root = Node(NodeLimits(key=ROOT, guaranteed=capacity), None)
        self.nodes: dict[Key, Node] = {ROOT: self.root}
        for each in by_key.values():
            self._add(each, by_key)
        self.load({}, {})

    def load(self, held: Mapping[Key, int], waiting: Mapping[Key, int]) -> None:
        """Begin with what the jobs of some nodes hold, and what their waiting jobs need."""
        for key, milli in held.items():
            for node in self.at(key).path:
                node.used += milli
        for key, milli in waiting.items():
            self.at(key).waiting += milli
        nodes = sorted(self.nodes.values(), key=lambda node: -len(node.path))
        for node in nodes:
            node.children_idle = node.children_withheld = node.children_promised = 0
        for node in nodes:
            node.withheld, node.promised = node.reserves()
            if node.parent is not None:
                node.parent.children_idle += node.idle
                node.parent.children_withheld += node.withheld
                node.parent.children_promised += node.promised

    def copy(self) -> Column:
        """The same nodes with the same use, which can be changed without changing this."""
        limits = [node.limits for node in self.nodes.values() if node.parent is not None]
        copy = Column(self.name, limits, self.root.limits.guaranteed)
        for key, node in self.nodes.items():
            other = copy.nodes[key]
            for name in Node.__slots__:
                if name not in {"key", "limits", "parent", "path"}:
                    setattr(other, name, getattr(node, name))
        return copy

    def at(self, key: Key) -> Node:
        """A node; the root for what is in no other node."""
        return self.nodes.get(key, self.root)

    def _add(self, limits: NodeLimits, by_key: dict[Key, NodeLimits]) -> Node:
        node = self.nodes.get(limits.key)
        if node is None:
            known = self.nodes.get(limits.parent)
            parent = known or self._add(by_key[limits.parent], by_key)
            node = self.nodes[limits.key] = Node(limits, parent)
        return node

    def over_maximum(self, key: Key, milli: int) -> Node | None:
        """The lowest node that may not hold so much more, or None."""
        for node in self.at(key).path:
            most = node.limits.maximum
            if most is not None and node.used + milli > most:
                return node
        return None

    def covers(self, key: Key, milli: int, *, borrow: bool) -> bool:
        """Tell whether idle guaranteed GPUs cover so much more for this node.

        They are its own, or those of a node above it; with `borrow` also those that are lent. What
        other nodes keep must also fit below every maximum on the path.
        """
        reserve = Reserve.WITHHELD if borrow else Reserve.PROMISED
        child = None
        reserved = 0
        is_covered = False
        for node in self.at(key).path:
            reserved += node.reserved_beside(child, reserve)
            limits = node.limits
            left = milli + node.used + reserved
            if limits.maximum is not None and left > limits.maximum:
                return False
            is_covered = is_covered or left <= limits.guaranteed
            child = node
        return is_covered

    def covering(self, key: Key, milli: int, reserve: Reserve) -> Node | None:
        """The lowest node on the path whose idle guarantee covers so much more.

        Without what nodes beside the path keep, below it.
        """
        child = None
        reserved = 0
        for node in self.at(key).path:
            reserved += node.reserved_beside(child, reserve)
            if milli <= node.limits.guaranteed - node.used - reserved:
                return node
            child = node
        return None

    def room(self, key: Key, *, borrow: bool) -> int:
        """How much more the node may hold, with what it may borrow."""
        reserve = Reserve.WITHHELD if borrow else Reserve.PROMISED
        child = None
        reserved = found = 0
        most: int | None = None
        for node in self.at(key).path:
            reserved += node.reserved_beside(child, reserve)
            found = max(found, node.limits.guaranteed - node.used - reserved)
            if node.limits.maximum is not None:
                left = node.limits.maximum - node.used - reserved
                most = left if most is None else min(most, left)
            child = node
        return max(0, found if most is None else min(found, most))

    def withholding(self, key: Key) -> list[Node]:
        """The topmost nodes that do not lend all of their idle guarantee to this one."""
        path = self.at(key).path
        keeps = {node for node in self.nodes.values() if node.withheld > node.children_withheld}
        return [node for node in keeps.difference(path) if keeps.isdisjoint(node.path[1:])]

    def is_entitled(self, key: Key, milli: int) -> bool:
        """Tell whether so much more is within a guarantee, so that it may be reclaimed."""
        covering = self.covering(key, milli, Reserve.IDLE)
        return covering is not None and covering.parent is not None

    def entitlement(self, key: Key, milli: int) -> Entitlement | None:
        """The right to reclaim for so much more; None if it is not within a guarantee."""
        covering = self.covering(key, milli, Reserve.IDLE)
        if covering is None or covering.parent is None:
            return None
        above = []
        for node in covering.parent.path:
            above.append(node.key)
            if node.used + milli > node.limits.guaranteed:
                break
        path = frozenset(node.key for node in self.at(key).path)
        return Entitlement(frozenset(above), path)

    def leaves_guarantees(
        self,
        key: Key,
        milli: int,
        path: frozenset[Key],
        reclaimed: Reclaimed,
        *,
        is_reclaim: bool = False,
    ) -> bool:
        """Tell whether every node that is not on the `path` keeps its guarantee with so much less.

        To a job that reclaims, a node that yields needs only borrow something.
        """
        for node in self.at(key).path:
            if node.key in path:
                break
            left = node.used - node.limits.guaranteed - reclaimed.get((self.name, node.key), 0)
            if left < milli and not (is_reclaim and node.limits.yields and left > 0):
                return False
        return True

    def is_lent(self, right: Entitlement, key: Key, milli: int, reclaimed: Reclaimed) -> bool:
        """Tell whether a job of this node and size holds what the entitled job may reclaim."""
        meets = next(node for node in self.at(key).path if node.key in right.path)
        return meets.key in right.above and self.leaves_guarantees(
            key, milli, right.path, reclaimed, is_reclaim=True
        )
