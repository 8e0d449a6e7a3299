"""Sets aside objects that nothing can be decided with, so that one does not stop all others.

An object is set aside if the API client could not read it, if one of its values cannot be used
(`problem`), or if a decision failed and fails no more without it (`find_offender`). Such an
offender is tried again when its content has changed, and after some minutes.

Without an object, the scheduler must not believe in room that is not there: a node on which a bound
pod was set aside takes no new pods, and GPUs stay taken by their leases.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from gpu_scheduler.kubernetes.client.client import Unreadable
from gpu_scheduler.kubernetes.crds.claim import GpuClaim
from gpu_scheduler.kubernetes.crds.node_status import GpuNodeStatus
from gpu_scheduler.kubernetes.names import CLAIM_ANNOTATION, SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import Node, Object, Pod, once_per_object
from gpu_scheduler.kubernetes.quantities import pod_requests
from gpu_scheduler.kubernetes.scheduler.decision import WaitingPod
from gpu_scheduler.kubernetes.scheduler.devices import reported_devices
from gpu_scheduler.kubernetes.scheduler.filters import host_ports, node_allocatable
from gpu_scheduler.kubernetes.scheduler.objects_view import Key, Objects, has_ended, is_bound
from gpu_scheduler.kubernetes.scheduler.workloads import claim_request
from gpu_scheduler.model.errors import InvalidRequest

FIELDS = (
    "nodes",
    "node_statuses",
    "namespaces",
    "storage_classes",
    "csi_nodes",
    "csi_drivers",
    "storage_capacities",
    "volumes",
    "device_classes",
    "resource_slices",
    "leases",
    "budgets",
    "queues",
    "reservations",
    "pods",
    "volume_claims",
    "claims",
    "resource_claims",
)
"""The order in which objects are added until a decision fails.

A pod stands before what it names: without its GpuClaim it waits, so the claim is found to be wrong.
"""
AGAIN_SECONDS = 600.0
Place = tuple[str, Key]
"""The field of `Objects`, and the key there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """An object that decisions are made without, and why."""

    field: str
    object: Object
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offender:
    content: bytes
    until: float
    why: str


class Isolation:
    """Knows which objects to leave out of the next decision."""

    def __init__(self) -> None:
        self._offenders: dict[Place, _Offender] = {}

    def add(self, field: str, offender: Object, why: str, at: float) -> None:
        """A decision fails with this version of an object."""
        self._offenders[field, offender.key] = _Offender(
            content=_content(offender), until=at + AGAIN_SECONDS, why=why
        )

    def split(
        self, objects: Objects, unreadable: Mapping[str, Mapping[Key, Unreadable]], at: float
    ) -> tuple[Objects, tuple[SetAside, ...]]:
        """The objects to decide with, and those that are set aside."""
        aside = {(one.field, one.object.key): one for one in self._found(objects, at)}
        for field, problems in unreadable.items():
            for key, problem in problems.items():
                aside[field, key] = SetAside(field=field, object=problem.identity, why=problem.why)
        self._offenders = {place: one for place, one in self._offenders.items() if place in aside}
        if not aside:
            return objects, ()
        return _without(objects, aside), tuple(one for _, one in sorted(aside.items()))

    def _found(self, objects: Objects, at: float) -> Iterator[SetAside]:
        for field in ("nodes", "node_statuses", "pods", "claims"):
            for one in getattr(objects, field).values():
                why = problem(one)
                if why:
                    yield SetAside(field=field, object=one, why=why)
        for (field, key), offender in self._offenders.items():
            one = getattr(objects, field).get(key)
            if one is not None and _content(one) == offender.content and at < offender.until:
                yield SetAside(field=field, object=one, why=offender.why)


@once_per_object
def problem(one: Object) -> str:
    """Why a value of an object cannot be used, as far as the object alone tells; else empty.

    A pod that waits, and a claim, with a request that can never be met have reasons of their own.
    """
    try:
        match one:
            case Node():
                node_allocatable(one)
            case GpuNodeStatus():
                reported_devices(one, 0)
            case Pod():
                pod_requests(one)
                host_ports(one)
            case GpuClaim():
                claim_request(one, 0, 0)
    except InvalidRequest:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this object only
        return _told(error)
    return ""


async def find_offender(
    objects: Objects, decide: Callable[[Objects], object]
) -> tuple[str, Object, str] | None:
    """One object with which a decision fails, its field, and the error; None if there is none.

    Objects are added one after the other, by bisection: the one sought is the last of a failing
    row whose row before does not fail. Other tasks run between two attempts.
    """
    rows = [(field, one) for field in FIELDS for _, one in sorted(getattr(objects, field).items())]

    async def failure(count: int) -> Exception | None:
        await asyncio.sleep(0)
        try:
            decide(_only(objects, rows[:count]))
        except Exception as error:  # noqa: BLE001 - the question is whether there is any
            return error
        return None

    if await failure(0) is not None:
        return None
    most, error = len(rows), await failure(len(rows))
    least = 0
    while error is not None and most - least > 1:
        middle = (least + most) // 2
        found = await failure(middle)
        if found is None:
            least = middle
        else:
            most, error = middle, found
    if error is None:
        return None
    field, offender = rows[most - 1]
    return field, offender, _told(error)


def explained(
    waiting: Mapping[Key, WaitingPod], aside: Iterable[SetAside]
) -> Mapping[Key, WaitingPod]:
    """Why pods wait, with the pods that are set aside, and those whose claim is."""
    found = dict(waiting)
    claims: dict[Key, str] = {}
    for one in aside:
        pod = one.object
        if one.field == "claims":
            claims[pod.key] = one.why
        elif isinstance(pod, Pod) and _waits(pod):
            reason = f"the scheduler cannot judge it: {one.why}"
            found[pod.key] = WaitingPod(pod=pod, reason=reason)
    for key, pending in waiting.items() if claims else ():
        name = pending.pod.metadata.annotations.get(CLAIM_ANNOTATION, "")
        why = claims.get((key[0], name))
        if why is not None:
            reason = f"the scheduler cannot judge its GpuClaim '{name}': {why}"
            found[key] = replace(pending, reason=reason)
    return found


def _waits(pod: Pod) -> bool:
    is_ours = pod.spec.scheduler_name == SCHEDULER_NAME
    return is_ours and not is_bound(pod) and not has_ended(pod)


def _only(objects: Objects, rows: list[tuple[str, Object]]) -> Objects:
    kept: dict[str, Any] = {field: {} for field in FIELDS}
    for field, one in rows:
        kept[field][one.key] = one
    return replace(objects, **kept)


def _without(objects: Objects, aside: Mapping[Place, SetAside]) -> Objects:
    kept: dict[str, Any] = {
        field: {
            key: one for key, one in getattr(objects, field).items() if (field, key) not in aside
        }
        for field in {field for field, _ in aside} | {"nodes"}
    }
    closed = {key[1] for field, key in aside if field == "node_statuses"}
    for field, key in aside:
        pod = objects.pods.get(key) if field == "pods" else None
        if pod is not None and is_bound(pod) and not has_ended(pod):
            closed.add(pod.spec.node_name)
    for key, node in kept["nodes"].items():
        if node.metadata.name in closed:
            # No pod tolerates a node that is not ready.
            not_ready = structs.replace(node.status, conditions=())
            kept["nodes"][key] = structs.replace(node, status=not_ready)
    return replace(objects, **kept)


def _content(one: Object) -> bytes:
    """What users write of an object; its status changes also because of what we tell there."""
    meta = one.metadata
    parts = (meta.uid, meta.labels, meta.annotations, getattr(one, "spec", None))
    return msgspec.json.encode(parts)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
