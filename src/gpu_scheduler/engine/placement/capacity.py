"""What could ever run here: judged against all known nodes, empty, healthy and online."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.engine.placement.gangs import most_members, place_gang
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import NodeClass, RequestShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.node import (
    ONLY,
    Health,
    Node,
    NodeState,
    describe_labels,
    is_node_name_label,
    label_feature,
    user_labels,
)
from gpu_scheduler.model.request import MB_PER_GB, Request

MOST_NAMED = 5


def largest_node_gpus(index: NodeIndex, request: Request) -> int:
    """The most GPUs of one model on one known node that the request may use."""
    for count, node_class in index.shape(request).widths(index.node_classes):
        if _is_present(index, node_class):
            return count
    return 0


def ever_fits(state: ClusterState, job_shape: JobShape) -> str:
    """Why the job could never run, even on the empty cluster; an empty text if it could."""
    index = state.index
    first = job_shape.members[0]
    if job_shape.min_members == 1 and not first.labelled:
        return _lone_verdict(index, first)
    verdicts = state.gang_verdicts
    verdict = verdicts.get((job_shape.id, index.version))
    if verdict is None:
        if verdicts and next(iter(verdicts))[1] != index.version:
            verdicts.clear()
        verdict = verdicts[job_shape.id, index.version] = _verdict(index, job_shape)
    return verdict


def described(shape: RequestShape, *, as_asked: bool = False) -> str:
    """A request in a few words; `as_asked`, without what a node must offer to run it at all."""
    request = shape.request
    labels = user_labels(request.node_labels) if as_asked else request.node_labels
    words = []
    if request.gpu_count or request.gpu_extra_milli:
        amount = f"{request.gpu_milli / 1000:g} GPU" + ("s" if request.gpu_milli > 1000 else "")
        if request.mig_profile:
            amount = f"{request.gpu_count} x MIG {request.mig_profile}"
        elif not request.gpu_milli:
            amount = f"{request.gpu_count} shared GPU" + ("s" if request.gpu_count > 1 else "")
        if request.gpu_models:
            amount += f" ({' or '.join(request.gpu_models)})"
        if request.device_ids:
            amount += f" with index {' or '.join(map(str, request.device_ids))}"
        words.append(amount)
    if request.gpu_memory_mb:
        words.append(f"{_size(request.gpu_memory_mb)} of GPU memory each")
    if request.cpu_milli:
        words.append(f"{request.cpu_milli / 1000:g} CPU core" + "s" * (request.cpu_milli > 1000))
    if request.memory_mb:
        words.append(f"{_size(request.memory_mb)} of memory")
    of_node = describe_labels(labels)
    if of_node and not words:
        words.append("a place")
    return ", ".join([*words, *of_node]) or "nothing"


def _size(memory_mb: int) -> str:
    """In GB, as people ask for it, where that says it exactly."""
    whole, rest = divmod(memory_mb, MB_PER_GB)
    return f"{memory_mb} MiB" if rest else f"{whole:,} GB"


def offered(index: NodeIndex) -> str:
    """The largest node in a few words."""
    present = [node_class for node_class in index.node_classes if _is_present(index, node_class)]
    node_classes = sorted(
        present, key=lambda node_class: (-node_class.size, -node_class.cpu_milli, node_class.id)
    )
    if not node_classes:
        return "no node is known"
    best = node_classes[0]
    gpus = f"{best.size} {'/'.join(best.models)} GPUs" if best.size else "no GPU"
    return (
        f"the largest node has {gpus}, {best.cpu_milli / 1000:g} CPU cores and "
        f"{best.memory_mb / MB_PER_GB:,.0f} GB of memory"
    )


def _verdict(index: NodeIndex, job_shape: JobShape) -> str:
    for shape in dict.fromkeys(job_shape.members[: job_shape.min_members]):
        missing = _lone_verdict(index, shape)
        if missing:
            return missing
    return "" if job_shape.min_members == 1 else _try_empty(index, job_shape)


def _lone_verdict(index: NodeIndex, shape: RequestShape) -> str:
    """One and the same node must have the labels and the hardware."""
    if shape.node_classes_seen != len(index.node_classes):
        shape.learn(index.node_classes)
    selected = index.selected(shape.request)
    if selected is None:
        found = any(_is_present(index, fit.node_class) for fit in shape.fits)
    else:
        found = any(
            resources.node_class.id in shape.by_node_class for resources in index.nodes_in(selected)
        )
    if found:
        return ""
    return f"no node offers {described(shape)}; {_unlabelled(index, shape)}{offered(index)}"


def _unlabelled(index: NodeIndex, shape: RequestShape) -> str:
    """Which of the labels no node has, if it is that."""
    known = {label for resources in index.by_id.values() for label in resources.node.labels}
    for name, value in shape.request.node_labels:
        if name == ONLY:
            strange = [one for one in value.split(",") if one not in index.by_id]
            if strange:
                return f"no node is called {' or '.join(strange[:MOST_NAMED])}; "
        elif not is_node_name_label(name) and (name, value) not in known:
            offer = label_feature(name)
            if offer:
                return f"no node has {offer}; "
            others = sorted(has for label, has in known if label == name)[:MOST_NAMED]
            known_values = f", but {name}={' or '.join(others)}" if others else ""
            return f"no node has label {name}={value}{known_values}; "
    return ""


def _is_present(index: NodeIndex, node_class: NodeClass) -> bool:
    """Tell whether a node of the class exists: classes stay known when their nodes are gone."""
    example = index.by_id.get(node_class.example)
    if example is not None and example.node_class is node_class:
        return True
    if node_class.absent_at == index.version:
        return False
    for resources in index.by_id.values():
        if resources.node_class is node_class:
            node_class.example = resources.node.id
            return True
    node_class.absent_at = index.version
    return False


def _try_empty(index: NodeIndex, job_shape: JobShape) -> str:
    healthy = (_at_its_best(resources.node) for resources in index.by_ordinal())
    empty, twin = _on_empty_nodes(healthy, job_shape)
    if place_gang(twin, Transaction(empty), empty.find) is not None:
        return ""
    where = _where_it_fails(empty, twin)
    members = job_shape.members[: job_shape.min_members]
    requested = sum(member.request.gpu_milli for member in members) / 1000
    count = len(index.by_id)
    existing = sum(resources.node.gpu_count for resources in index.by_id.values())
    if requested <= existing:
        nodes = "the only node does" if count == 1 else f"the {count} nodes do"
        members_text = f"{len(members)} members with {requested:g} GPUs in total requested"
        return f"{members_text}, but {nodes} not have room for all of them; {where}{offered(index)}"
    total = "" if count == 1 else f"the {count} nodes have {existing} in total; "
    return f"{requested:g} GPUs requested, but {total}{where}{offered(index)}"


def _on_empty_nodes(nodes: Iterable[Node], job_shape: JobShape) -> tuple[NodeIndex, JobShape]:
    """An index of these nodes, all empty, and the job shape there."""
    index = NodeIndex()
    for node in nodes:
        index.add_node(node)
    shapes = tuple(index.shape(member.request) for member in job_shape.members)
    return index, JobShape(0, shapes, job_shape.min_members, same_rack=job_shape.same_rack)


def _chosen_by(labels: tuple[tuple[str, str], ...], nodes: int) -> str:
    words = ", ".join(describe_labels(labels))
    if any(is_node_name_label(name) for name, _ in labels):
        return f"may be used ({words})"
    return (
        f"{'has' if nodes == 1 else 'have'} {words.removeprefix('labels ').removeprefix('with ')}"
    )


def _where_it_fails(empty: NodeIndex, job_shape: JobShape) -> str:
    """What a gang asks for that leaves it too few places: one rack, or labels."""
    transaction = Transaction(empty)
    least = job_shape.min_members
    wanted = job_shape.members[:least]
    labels = wanted[0].request.node_labels
    found = ""
    if labels:
        count = (empty.selected(wanted[0].request) or 0).bit_count()
        room = most_members(transaction, wanted, empty.find, None)
        nodes = f"{count} node{'s' * (count != 1)}"
        found = f"{nodes} {_chosen_by(labels, count)}, with room for {room} of {least}; "
    if job_shape.same_rack:
        rooms = [
            (-most_members(transaction, wanted, empty.find, bits), name)
            for name, bits in empty.racks().items()
        ]
        room, name = min(rooms)
        found += (
            f"the largest rack, {name or 'which has no name'}, has room for {-room} of {least}; "
        )
    return found


def open_room(state: ClusterState, job_shape: JobShape) -> bool:
    """Tell whether the nodes that take work now could run a job, if they were empty."""
    least = job_shape.members[: job_shape.min_members]
    nodes = [
        resources.node
        for resources in state.index.by_ordinal()
        if resources.bucket >= 0
        and any(_is_able(state.index, resources, shape) for shape in dict.fromkeys(least))
    ]
    if len(least) == 1 or not nodes:
        return bool(nodes)
    opened, twin = _on_empty_nodes(nodes, job_shape)
    return place_gang(twin, Transaction(opened), opened.find) is not None


def _is_able(index: NodeIndex, resources: NodeResources, shape: RequestShape) -> bool:
    """Tell whether a node, as it is but empty, could run one member."""
    selected = index.selected(shape.request)
    if selected is not None and not selected & resources.bit:
        return False
    wanted = shape.request.device_count
    return any(
        (fit.allowed & resources.usable).bit_count() >= wanted
        for fit in shape.by_node_class.get(resources.node_class.id, ())
    )


def _at_its_best(node: Node) -> Node:
    devices = tuple(
        replace(device, health=Health.HEALTHY, paused=False, hot=False, foreign=None)
        for device in node.devices
    )
    return replace(node, devices=devices, state=NodeState.ONLINE, closed=None)
