"""The complete contents of an index and a cluster state as comparable plain values."""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from sortedcontainers import SortedList

from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import NodeClass, RequestShape
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


MEMOS = (JobShape, RequestShape, NodeClass)
"""What equal requests and equal nodes share, with answers about them: compared by identity."""
SHAPE_TABLES = (
    *("job_shapes", "shapes_of_base", "_shape_of", "_bases", "_next_shape", "gang_verdicts"),
    *("index._shape_of", "index._next_shape", "index._racks", "index._selected"),
    *("index._numbers", "index._next_number"),
)
"""Fields of the cluster state that find these again. Entries may be added at any time: that they
change no plan is a property of its own (a rebuilt state gives the same plan)."""


def contents(thing: Any, place: str, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every attribute and item below an object by its place, so that new fields need no line here.

    Values that cannot change are compared as they are. Each object is entered once; other
    references to it are compared by where it was found first. Places that begin with one of
    `left_out` are not entered.
    """
    found: dict[str, Any] = {}
    seen: dict[int, str] = {}
    todo = [(place, thing)]
    while todo:
        place, thing = todo.pop()
        if place.startswith(left_out):
            continue
        if _is_value(thing):
            found[place] = thing
        elif isinstance(thing, MEMOS):
            found[place] = id(thing)
        elif id(thing) in seen:
            found[place] = f"see {seen[id(thing)]}"
        else:
            seen[id(thing)] = place
            found[place], parts = _parts(thing)
            todo += [(place + name, part) for name, part in parts]
    return found


def _parts(thing: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The shape of an object, and what it holds. Plans do not depend on the order of keys."""
    if isinstance(thing, dict):
        return sorted(map(repr, thing)), [(f"[{key!r}]", part) for key, part in thing.items()]
    if isinstance(thing, list | tuple | deque | SortedList):
        return len(thing), [(f"[{place}]", part) for place, part in enumerate(thing)]
    if isinstance(thing, set):
        return sorted(map(repr, thing)), []
    names = {name for kind in type(thing).__mro__ for name in _slots(kind)}
    names |= vars(thing).keys() if hasattr(thing, "__dict__") else set()
    held = [(f".{name}", getattr(thing, name)) for name in sorted(names) if hasattr(thing, name)]
    return type(thing).__name__, held


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_value(thing: Any) -> bool:
    """Tell whether this can never change: a number, a text, a frozen dataclass, a function."""
    if isinstance(thing, tuple):
        return all(map(_is_value, thing))
    if thing is None or isinstance(thing, int | float | str | bytes | frozenset | Enum | type):
        return True
    params = getattr(type(thing), "__dataclass_params__", None)
    return isinstance(thing, Callable) or (params is not None and params.frozen)  # type: ignore[arg-type]


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The places whose contents differ, before and after."""
    places = before.keys() | after.keys()
    return {
        place: (before.get(place), after.get(place))
        for place in sorted(places)
        if before.get(place, ...) != after.get(place, ...)
    }
