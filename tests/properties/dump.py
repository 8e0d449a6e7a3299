"""The complete contents of an index and a cluster state as comparable plain values."""

from typing import Any

from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_index import NO_NODE, NodeIndex
from gpu_scheduler.engine.state.node_resources import NodeResources


def resource_values(resources: NodeResources) -> dict[str, Any]:
    """Every field of the resources of a node; the node and kind by name."""
    values = {
        name: getattr(resources, name)
        for name in NodeResources.__slots__
        if name not in {"node", "node_class"}
    }
    values["shared"] = {place: tuple(entry) for place, entry in sorted(resources.shared.items())}
    values["mig"] = dict(resources.mig)
    values["sizes"] = dict(resources.sizes)
    return {"node": resources.node.id, "node_class": resources.node_class.id, **values}


def index_values(index: NodeIndex) -> dict[str, Any]:
    """Resources, buckets, rows and vectors."""
    index.refresh()
    return {
        "slots": [
            None if resources is NO_NODE else resource_values(resources)
            for resources in index.nodes
        ],
        "free_devices": index.free_devices,
        "rows": list(index._rows),
        "buckets": {place: bits for place, bits in enumerate(index._buckets) if bits},
        "part_rows": list(index._parts.rows),
        "part_steps": index._parts.steps,
        "vectors": dict(index.vectors),
    }


def dump_of(cluster: ClusterState) -> dict[str, Any]:
    """Everything that a decision must leave unchanged."""
    return {
        "index": index_values(cluster.index),
        "running": sorted(cluster.running),
        "ends": list(cluster.ends),
        "by_node": {node: sorted(entries) for node, entries in cluster.by_node.items()},
        "by_class": {level: sorted(entries) for level, entries in cluster.by_class.items()},
        "reservations": dict(cluster.reservations),
        "queue": sorted(cluster.queue.entries),
        "heads": {key: list(group.heads) for key, group in cluster.queue.groups.items()},
        "holdings": {
            tenant: [getattr(amounts, name) for name in amounts.__slots__]
            for tenant, amounts in cluster.holdings.tenants.items()
        },
        "pools": {pool: held for pool, held in cluster.holdings.pools.items() if held},
    }
