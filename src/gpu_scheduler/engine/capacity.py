"""What could ever run here: judged against all known nodes, empty, healthy and online."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.engine import gang
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.index import Index
from gpu_scheduler.engine.kind import Kind
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.model.node import Health, Node, NodeState
from gpu_scheduler.model.request import MB_PER_GB, Request


def largest_node_gpus(index: Index, request: Request) -> int:
    """The most GPUs of one model on one known node that the request may use."""
    for count, kind in index.shape(request).widths(index.kinds):
        if _is_present(index, kind):
            return count
    return 0


def ever_fits(picture: Picture, job_shape: JobShape) -> str:
    """Why the job could never run, even on the empty cluster; an empty text if it could."""
    index = picture.index
    first = job_shape.members[0]
    if job_shape.min_members == 1 and not first.labelled:
        return _lone_verdict(index, first)
    verdicts = picture.gang_verdicts
    verdict = verdicts.get((job_shape.id, index.version))
    if verdict is None:
        if verdicts and next(iter(verdicts))[1] != index.version:
            verdicts.clear()
        verdict = verdicts[job_shape.id, index.version] = _verdict(index, job_shape)
    return verdict


def described(shape: Shape) -> str:
    """A request in a few words."""
    request = shape.request
    words = []
    if request.gpu_count or request.gpu_extra_milli:
        amount = f"{request.gpu_milli / 1000:g} GPU" + ("s" if request.gpu_milli > 1000 else "")
        if request.mig_profile:
            amount = f"{request.gpu_count} x MIG {request.mig_profile}"
        elif not request.gpu_milli:
            amount = f"{request.gpu_count} shared GPU" + ("s" if request.gpu_count > 1 else "")
        if request.gpu_models:
            amount += f" ({' or '.join(request.gpu_models)})"
        words.append(amount)
    if request.gpu_memory_mb:
        words.append(f"{request.gpu_memory_mb} MiB of GPU memory each")
    if request.cpu_milli:
        words.append(f"{request.cpu_milli / 1000:g} CPU cores")
    if request.memory_mb:
        words.append(f"{request.memory_mb} MiB of memory")
    if request.node_labels:
        words.append("labels " + ", ".join(f"{k}={v}" for k, v in request.node_labels))
    return ", ".join(words) or "nothing"


def offered(index: Index) -> str:
    """The largest node in a few words."""
    present = [kind for kind in index.kinds if _is_present(index, kind)]
    kinds = sorted(present, key=lambda kind: (-kind.size, -kind.cpu_milli, kind.id))
    if not kinds:
        return "no node is known"
    best = kinds[0]
    models = "/".join(best.models) or "no"
    return (
        f"the largest node has {best.size} {models} GPUs, {best.cpu_milli / 1000:g} CPU cores and "
        f"{best.memory_mb / MB_PER_GB:,.0f} GB of memory"
    )


def _verdict(index: Index, job_shape: JobShape) -> str:
    for shape in dict.fromkeys(job_shape.members[: job_shape.min_members]):
        missing = _lone_verdict(index, shape)
        if missing:
            return missing
    return "" if job_shape.min_members == 1 else _try_empty(index, job_shape)


def _lone_verdict(index: Index, shape: Shape) -> str:
    """One and the same node must have the labels and the hardware."""
    if shape.kinds_seen != len(index.kinds):
        shape.learn(index.kinds)
    selected = index.selected(shape.request)
    if selected is None:
        found = any(_is_present(index, fit.kind) for fit in shape.fits)
    else:
        found = any(slot.kind.id in shape.by_kind for slot in index.slots_in(selected))
    return "" if found else f"no node offers {described(shape)}; {offered(index)}"


def _is_present(index: Index, kind: Kind) -> bool:
    """Tell whether a node of the kind is there: kinds stay known when their nodes are gone."""
    example = index.by_id.get(kind.example)
    if example is not None and example.kind is kind:
        return True
    if kind.absent_at == index.version:
        return False
    for slot in index.by_id.values():
        if slot.kind is kind:
            kind.example = slot.node.id
            return True
    kind.absent_at = index.version
    return False


def _try_empty(index: Index, job_shape: JobShape) -> str:
    empty = Index()
    for slot in sorted(index.by_id.values(), key=lambda slot: slot.ordinal):
        empty.add_node(_at_its_best(slot.node))
    shapes = tuple(empty.shape(member.request) for member in job_shape.members)
    twin = JobShape(0, shapes, job_shape.min_members, same_rack=job_shape.same_rack)
    if gang.place(twin, Draft(empty), empty.find) is not None:
        return ""
    total = sum(member.request.gpu_milli for member in job_shape.members[: job_shape.min_members])
    count = len(index.by_id)
    nodes = "the one node" if count == 1 else f"the {count} nodes"
    return (
        f"{total / 1000:g} GPUs in {job_shape.min_members} parts do not fit together on {nodes}; "
        f"{offered(index)}"
    )


def _at_its_best(node: Node) -> Node:
    devices = tuple(
        replace(device, health=Health.HEALTHY, paused=False, hot=False, foreign=None)
        for device in node.devices
    )
    return replace(node, devices=devices, state=NodeState.ONLINE, closed=None)
