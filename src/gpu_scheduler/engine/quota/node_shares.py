"""What each node of the quota tree holds, is guaranteed, borrows and lends: for tables.

Every free GPU counts for one node on each level. So in each row, used + free = guaranteed +
borrowed - lent, and what the children of a node borrow less what they lend is what the node itself
borrows less what it lends; at the root both are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_scheduler.engine.quota.admission import Admission
from gpu_scheduler.engine.quota.resource_limits import ROOT, Column, Node
from gpu_scheduler.engine.quota.tree import HOURS
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.quota_tree import ANY_MODEL, CLUSTER

OTHERS = "(others)"
"""What a node has beside its children: jobs in none of them, and a guarantee given to none."""
MISSING = "(missing)"
"""What is guaranteed to children and their parent does not have, as nodes are out of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """The GPUs of one model, or of all (`model` is "*"), in one node with all below it.

    `free_milli` are free GPUs that count for the node: first those that it or a node below does not
    lend, then of its idle guarantee; where several nodes have lent, each has in proportion to that.
    What it uses and has free beyond its guarantee is borrowed, and what is missing is lent.
    """

    name: str
    parent: str
    level: int
    model: str
    used_milli: int
    free_milli: int
    guaranteed_milli: int
    maximum_milli: int | None = None

    @property
    def borrowed_milli(self) -> int:
        """What it has beyond its guarantee."""
        return max(0, self.used_milli + self.free_milli - self.guaranteed_milli)

    @property
    def lent_milli(self) -> int:
        """The part of its guarantee that other nodes hold or keep free."""
        return max(0, self.guaranteed_milli - self.used_milli - self.free_milli)


def node_shares(state: ClusterState) -> list[NodeShare]:
    """The shares of all nodes, each below its parent; none if there is no quota tree."""
    if not state.quota_nodes:
        return []
    tree = Admission(
        limits=state.tree_limits(),
        holdings=state.holdings,
        tenant_usage=state.tenant_usage,
        policy=state.policy,
    ).tree
    columns = [column for name, column in tree.accounts.items() if name != HOURS]
    children: dict[object, list[object]] = {}
    for node in sorted(columns[0].nodes.values(), key=lambda node: str(node.key)):
        if node.parent is not None:
            children.setdefault(node.parent.key, []).append(node.key)
    of_columns = [_column_shares(column, children) for column in columns]
    found: list[NodeShare] = []

    def add(key: object) -> None:
        found.extend(shares[key] for shares in of_columns if key in shares)
        for child in children.get(key, ()):
            add(child)
        for rest in ((key, OTHERS), (key, MISSING)):
            found.extend(shares[rest] for shares in of_columns if rest in shares)

    add(ROOT)
    return found


def _column_shares(column: Column, children: dict[object, list[object]]) -> dict[object, NodeShare]:
    """The shares of one model by node; of the rest beside the children by parent and name."""
    found: dict[object, NodeShare] = {}

    def add(node: Node, level: int, free: int) -> None:
        parent = "" if node.parent is None or node.parent.key == ROOT else str(node.parent.key)
        limits = node.limits
        is_shown = column.name == ANY_MODEL or limits.guaranteed or node.used
        if is_shown or limits.maximum is not None:
            found[node.key] = NodeShare(
                name=CLUSTER if node.parent is None else str(node.key),
                parent=parent,
                level=level,
                model=column.name,
                used_milli=node.used,
                free_milli=free,
                guaranteed_milli=limits.guaranteed,
                maximum_milli=limits.maximum,
            )
        below = [column.nodes[key] for key in children.get(node.key, ())]
        if not below:
            return
        parts = _free_parts(below, free)
        rest = NodeShare(
            name=OTHERS,
            parent="" if node.parent is None else str(node.key),
            level=level + 1,
            model=column.name,
            used_milli=node.used - sum(child.used for child in below),
            free_milli=free - sum(parts),
            guaranteed_milli=limits.guaranteed - sum(child.limits.guaranteed for child in below),
        )
        missing = -rest.guaranteed_milli
        if missing > 0:
            gone = replace(rest, name=MISSING, used_milli=missing, free_milli=0, guaranteed_milli=0)
            found[node.key, MISSING] = gone
            rest = replace(rest, guaranteed_milli=0)
        if rest.used_milli or rest.lent_milli or rest.borrowed_milli:
            found[node.key, OTHERS] = rest
        for child, part in zip(below, parts, strict=True):
            add(child, level + 1, part)

    root = column.root
    add(root, 0, max(0, root.limits.guaranteed - root.used))
    return found


def _free_parts(nodes: list[Node], free: int) -> list[int]:
    """How the free GPUs of a parent count for its children: what they do not lend comes first."""
    parts = _in_proportion(free, [node.withheld for node in nodes])
    left = free - sum(parts)
    idle = [max(0, node.idle - part) for node, part in zip(nodes, parts, strict=True)]
    lent = _in_proportion(max(0, sum(idle) - left), idle)
    return [part + own - out for part, own, out in zip(parts, idle, lent, strict=True)]


def _in_proportion(total: int, wanted: list[int]) -> list[int]:
    """Parts of the total in proportion to what is wanted, and no more than that."""
    together = sum(wanted)
    if total >= together:
        return wanted
    parts = []
    for amount in wanted:
        part = total * amount // together if together else 0
        parts.append(part)
        total, together = total - part, together - amount
    return parts
