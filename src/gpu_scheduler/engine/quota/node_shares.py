"""What each node of the quota tree holds, is guaranteed, borrows and lends: for tables."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.engine.quota.admission import Admission
from gpu_scheduler.engine.quota.resource_limits import ROOT, Column, Node
from gpu_scheduler.engine.quota.tree import HOURS
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.quota_tree import ANY_MODEL, CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """The GPUs of one model, or of all (`model` is "*"), in one node with all below it.

    `lent_milli` is the part of its idle guarantee that other nodes hold. Where several nodes have
    idle guarantees, each has lent in proportion to them.
    """

    name: str
    parent: str
    level: int
    model: str
    used_milli: int
    guaranteed_milli: int
    maximum_milli: int | None
    borrowed_milli: int
    lent_milli: int


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
    lent = {column.name: _lent(column) for column in columns}
    found: list[NodeShare] = []

    def add(key: object, level: int) -> None:
        for column in columns:
            node = column.nodes.get(key)
            if node is None:
                continue
            limits = node.limits
            if column.name != ANY_MODEL and not (
                limits.guaranteed or limits.maximum is not None or node.used
            ):
                continue
            parent = node.parent
            found.append(
                NodeShare(
                    name=CLUSTER if key == ROOT else str(key),
                    parent="" if parent is None or parent.key == ROOT else str(parent.key),
                    level=level,
                    model=column.name,
                    used_milli=node.used,
                    guaranteed_milli=limits.guaranteed,
                    maximum_milli=limits.maximum,
                    borrowed_milli=node.borrowed,
                    lent_milli=lent[column.name][key],
                )
            )
        for child in _children(columns[0], columns[0].nodes[key]):
            add(child.key, level + 1)

    add(ROOT, 0)
    return found


def _children(column: Column, parent: Node) -> list[Node]:
    nodes = (node for node in column.nodes.values() if node.parent is parent)
    return sorted(nodes, key=lambda node: str(node.key))


def _lent(column: Column) -> dict[object, int]:
    """What each node has lent: what is idle at the parent serves its children first."""
    found: dict[object, int] = {ROOT: 0}

    def share(parent: Node) -> None:
        children = _children(column, parent)
        idle = sum(child.idle for child in children)
        lendable = {child.key: min(child.idle, _most_lent(child)) for child in children}
        total = max(0, idle - max(0, parent.idle - found[parent.key]))
        together = sum(lendable.values())
        for child in children:
            part = total * lendable[child.key] // together if together else 0
            found[child.key] = min(lendable[child.key], part)
            share(child)

    share(column.root)
    return found


def _most_lent(node: Node) -> int:
    return node.limits.guaranteed - node.limits.kept
