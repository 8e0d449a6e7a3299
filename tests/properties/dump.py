"""Everything an index and a picture know, as plain values that can be compared."""

from typing import Any

from gpu_scheduler.engine.state.cluster_state import Picture
from gpu_scheduler.engine.state.node_index import NO_SLOT, Index
from gpu_scheduler.engine.state.node_resources import Slot


def slot_values(slot: Slot) -> dict[str, Any]:
    """Every field of a slot; the node and kind by name."""
    values = {name: getattr(slot, name) for name in Slot.__slots__ if name not in {"node", "kind"}}
    values["shared"] = {place: tuple(entry) for place, entry in sorted(slot.shared.items())}
    values["mig"] = dict(slot.mig)
    values["sizes"] = dict(slot.sizes)
    return {"node": slot.node.id, "kind": slot.kind.id, **values}


def index_values(index: Index) -> dict[str, Any]:
    """Slots, buckets, rows and vectors."""
    index.settle()
    return {
        "slots": [None if slot is NO_SLOT else slot_values(slot) for slot in index.slots],
        "free_devices": index.free_devices,
        "rows": list(index._rows),
        "buckets": {place: bits for place, bits in enumerate(index._buckets) if bits},
        "part_rows": list(index._parts.rows),
        "part_steps": index._parts.steps,
        "vectors": dict(index.vectors),
    }


def dump_of(picture: Picture) -> dict[str, Any]:
    """All that a decision must leave as it was."""
    return {
        "index": index_values(picture.index),
        "running": sorted(picture.running),
        "ends": list(picture.ends),
        "by_node": {node: sorted(entries) for node, entries in picture.by_node.items()},
        "by_class": {level: sorted(entries) for level, entries in picture.by_class.items()},
        "reservations": dict(picture.reservations),
        "queue": sorted(picture.queue.entries),
        "heads": {key: list(group.heads) for key, group in picture.queue.groups.items()},
        "holdings": {
            tenant: [getattr(amounts, name) for name in amounts.__slots__]
            for tenant, amounts in picture.holdings.tenants.items()
        },
        "pools": {pool: held for pool, held in picture.holdings.pools.items() if held},
    }
