"""What users read: statuses of claims, conditions of pods and events.

Pure: what is known goes in, and writes that change something come out. A sentence that is already
there is not written again; an expected start that moves by less than a minute stays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpu_scheduler.engine.quota.node_shares import NodeShare
from gpu_scheduler.kubernetes.crds.claim import (
    AllocatedDevice,
    ClaimMember,
    ClaimPhase,
    ExpectedStart,
    GpuClaim,
    GpuClaimStatus,
    NeededCapacity,
)
from gpu_scheduler.kubernetes.crds.conditions import Condition, ConditionStatus
from gpu_scheduler.kubernetes.crds.queue import (
    ANY_MODEL,
    GpuQueue,
    GpuQueueStatus,
    QueueUsage,
)
from gpu_scheduler.kubernetes.crds.reservation import (
    GpuReservation,
    GpuReservationStatus,
    ReservationPhase,
)
from gpu_scheduler.kubernetes.names import SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import Object, Pod, Resource
from gpu_scheduler.kubernetes.scheduler.decision import (
    AssignedDevice,
    AssignedPod,
    Decision,
    Translation,
    WaitingPod,
)
from gpu_scheduler.kubernetes.scheduler.devices import HeldDevice, Holder
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Key,
    Objects,
    has_ended,
    is_being_deleted,
    is_bound,
)
from gpu_scheduler.model.request import WHOLE_MILLI, Request

LONGEST_SENTENCE = 1024
STEADY_SECONDS = 60
TOLD_AGAIN_SECONDS = 600
"""An event tells an expected start again if it moved by more than this."""
SCHEDULED = "Scheduled"
ACCEPTED = "Accepted"
GUARANTEED = "Guaranteed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionWrite:
    """Tell in a pod why it waits, as autoscalers and `kubectl describe` read it."""

    pod: Pod
    reason: str
    lacks_room: bool
    nominated: str

    def changes(self, now: datetime) -> dict[str, Any]:
        """A merge patch of the status, for exactly this version of the pod."""
        others = [one for one in self.pod.status.conditions if one.type != "PodScheduled"]
        told = [msgspec.to_builtins(one) for one in others]
        told.append(
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": _condition_reason(self.lacks_room),
                "message": self.reason,
                "lastTransitionTime": timestamp(now),
            }
        )
        version = self.pod.metadata.resource_version
        status = {"conditions": told, "nominatedNodeName": self.nominated or None}
        return {"metadata": {"resourceVersion": version}, "status": status}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWrite:
    """The new status of a claim."""

    claim: GpuClaim
    status: GpuClaimStatus

    def changes(self) -> dict[str, Any]:
        """A merge patch; what is no longer true is deleted."""
        new = msgspec.to_builtins(self.status)
        every = self.status.__struct_encode_fields__
        return {"status": {name: new.get(name) for name in every}}


def condition_writes(waiting: Mapping[Key, WaitingPod]) -> Iterator[ConditionWrite]:
    """Pods whose condition does not say yet why they wait."""
    for _, one in sorted(waiting.items()):
        reason = sentence(one.reason)
        wanted = ("False", _condition_reason(one.lacks_room), reason)
        told = [c for c in one.pod.status.conditions if c.type == "PodScheduled"]
        is_told = told and (told[0].status, told[0].reason, told[0].message) == wanted
        if not is_told or one.pod.status.nominated_node_name != one.nominated:
            yield ConditionWrite(
                pod=one.pod, reason=reason, lacks_room=one.lacks_room, nominated=one.nominated
            )


def _condition_reason(lacks_room: bool) -> str:
    """Cluster autoscalers add nodes for the first, and must not for the other."""
    return "Unschedulable" if lacks_room else "Waiting"


def claim_writes(
    objects: Objects, translation: Translation, decision: Decision, now: datetime
) -> Iterator[ClaimWrite]:
    """Claims whose status is not up to date."""
    pods_of = translation.workloads.pods_of_claims
    requests = {
        member.uid: member.request
        for work in translation.workloads.waiting
        for member in work.members
    }
    for key, claim in sorted(objects.claims.items()):
        pods = pods_of.get(key, [])
        status = _claim_status(claim, pods, translation, decision, requests, now)
        if status != claim.status:
            yield ClaimWrite(claim=claim, status=status)


def _claim_status(
    claim: GpuClaim,
    pods: list[Pod],
    translation: Translation,
    decision: Decision,
    requests: Mapping[str, Request],
    now: datetime,
) -> GpuClaimStatus:
    """`requests` are those of the pods that wait, by uid."""
    old = claim.status
    members = tuple(_members(pods, translation))
    waiting = [found for pod in pods if (found := decision.waiting.get(pod.key)) is not None]
    phase = _phase(pods, old.phase)
    reason, position, expected, needed = "", None, None, None
    if waiting and phase in (ClaimPhase.PENDING, ClaimPhase.PREEMPTED):
        first = waiting[0]
        reason, position = sentence(first.reason), first.position
        needed = _needed(waiting, requests) if first.lacks_room else None
        expected = _expected(first, old.expected_start)
    elif phase is ClaimPhase.PENDING and not pods:
        reason = "no pod uses this claim yet"
    first_node = members[0].node if members else ""
    return GpuClaimStatus(
        phase=phase,
        node=first_node,
        gpus=",".join(dict.fromkeys(str(d.index) for d in members[0].devices)) if members else "",
        members=members,
        reason=reason,
        queue_position=position,
        expected_start=expected,
        needed=needed,
        observed_generation=claim.metadata.generation or None,
        conditions=_conditions(old.conditions, phase, reason, claim.metadata.generation, now),
    )


def _needed(waiting: list[WaitingPod], requests: Mapping[str, Request]) -> NeededCapacity | None:
    """What free nodes would have to offer, for who adds them."""
    found = [requests[one.pod.metadata.uid] for one in waiting if one.pod.metadata.uid in requests]
    if not found:
        return None
    return NeededCapacity(
        pods=len(found),
        gpus_per_pod=max(-(-request.gpu_milli // WHOLE_MILLI) for request in found),
        models=found[0].gpu_models,
        cpu_per_pod=f"{max(request.cpu_milli for request in found)}m",
        memory_per_pod=f"{max(request.memory_mb for request in found)}Mi",
    )


def assigned_status(claim: GpuClaim, one: AssignedPod, now: datetime) -> GpuClaimStatus:
    """The status of the claim of a single pod right after its Binding."""
    devices = sorted(one.devices, key=lambda each: (each.index, each.uuid))
    member = ClaimMember(
        pod=one.pod.metadata.name,
        uid=one.pod.metadata.uid,
        node=one.node,
        devices=tuple(
            _allocated(device.index, device.uuid, device.model, device) for device in devices
        ),
    )
    generation = claim.metadata.generation
    return GpuClaimStatus(
        phase=ClaimPhase.SCHEDULED,
        node=one.node,
        gpus=",".join(dict.fromkeys(str(device.index) for device in devices)),
        members=(member,),
        observed_generation=generation or None,
        conditions=_conditions(claim.status.conditions, ClaimPhase.SCHEDULED, "", generation, now),
    )


def _members(pods: list[Pod], translation: Translation) -> Iterator[ClaimMember]:
    for pod in pods:
        if is_bound(pod) and not has_ended(pod):
            held = translation.leases.by_pod.get(pod.metadata.uid, ())
            yield ClaimMember(
                pod=pod.metadata.name,
                uid=pod.metadata.uid,
                node=pod.spec.node_name,
                devices=tuple(_devices(pod, held, translation)),
            )


def _devices(
    pod: Pod, held: Iterable[HeldDevice], translation: Translation
) -> Iterator[AllocatedDevice]:
    inventory = translation.inventories.get(pod.spec.node_name)
    for one in sorted(held, key=lambda each: (each.index, each.holder.uuid)):
        gpu = None if inventory is None else inventory.gpus.get(one.index)
        uuid = one.holder.uuid or (gpu.uuid if gpu is not None else str(one.index))
        yield _allocated(one.index, uuid, "" if gpu is None else gpu.model, one.holder)


def _allocated(
    index: int, uuid: str, model: str, share: Holder | AssignedDevice
) -> AllocatedDevice:
    is_part = share.share_milli < WHOLE_MILLI
    return AllocatedDevice(
        index=index,
        uuid=uuid,
        model=model,
        fraction=share.share_milli / WHOLE_MILLI if is_part else None,
        memory_mib=share.memory_mib if is_part and share.memory_mib else None,
    )


def _phase(pods: list[Pod], before: ClaimPhase | None) -> ClaimPhase:
    """How far the pods of a claim have come together."""
    live = [pod for pod in pods if not has_ended(pod)]
    if any(is_being_deleted(pod) and _is_disrupted(pod) for pod in live):
        return ClaimPhase.PREEMPTED
    if any(not is_bound(pod) and not is_being_deleted(pod) for pod in live):
        return ClaimPhase.PREEMPTED if before is ClaimPhase.PREEMPTED else ClaimPhase.PENDING
    if live:
        is_running = any(pod.status.phase == "Running" for pod in live)
        return ClaimPhase.RUNNING if is_running else ClaimPhase.SCHEDULED
    if pods:
        has_failed = any(pod.status.phase == "Failed" for pod in pods)
        return ClaimPhase.FAILED if has_failed else ClaimPhase.COMPLETED
    ended = (ClaimPhase.COMPLETED, ClaimPhase.FAILED, ClaimPhase.PREEMPTED)
    return before if before in ended else ClaimPhase.PENDING


def _is_disrupted(pod: Pod) -> bool:
    """Tell whether a pod ends because it was evicted."""
    return any(c.type == "DisruptionTarget" and c.status == "True" for c in pod.status.conditions)


def _expected(waiting: WaitingPod, old: ExpectedStart | None) -> ExpectedStart | None:
    if waiting.likely_ms is None and waiting.latest_ms is None:
        return None

    def steady(at_ms: int | None, before: datetime | None) -> datetime | None:
        if at_ms is None:
            return None
        new = datetime.fromtimestamp(at_ms // 1000, UTC)
        if before is not None and abs((new - before).total_seconds()) < STEADY_SECONDS:
            return before
        return new

    return ExpectedStart(
        likely=steady(waiting.likely_ms, None if old is None else old.likely),
        latest=steady(waiting.latest_ms, None if old is None else old.latest),
    )


def start_sentence(waiting: WaitingPod) -> str:
    """The expected start of a pod in an event; empty if none is known."""
    likely, latest = (
        None if at_ms is None else timestamp(datetime.fromtimestamp(at_ms // 1000, UTC))
        for at_ms in (waiting.likely_ms, waiting.latest_ms)
    )
    if likely is None:
        return ""
    if latest is None:
        return f"should start at {likely}, by the run times of like pods before it"
    if latest == likely:
        return f"should start at {likely} if all pods before it use their time limits"
    return f"should start at {likely}, and at {latest} if all pods before it use their time limits"


def _conditions(
    old: tuple[Condition, ...], phase: ClaimPhase, reason: str, generation: int, now: datetime
) -> tuple[Condition, ...]:
    is_scheduled = phase not in (ClaimPhase.PENDING, ClaimPhase.PREEMPTED)
    new = Condition(
        type=SCHEDULED,
        status=ConditionStatus.TRUE if is_scheduled else ConditionStatus.FALSE,
        reason=phase.value,
        message=reason,
        last_transition_time=now.replace(microsecond=0),
        observed_generation=generation or None,
    )
    return _with_condition(old, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWrite:
    """The new status of a queue."""

    queue: GpuQueue
    status: GpuQueueStatus

    def changes(self) -> dict[str, Any]:
        """A merge patch; what is no longer true is deleted."""
        new = msgspec.to_builtins(self.status)
        return {"status": {name: new.get(name) for name in self.status.__struct_encode_fields__}}


def queue_writes(
    objects: Objects, translation: Translation, decision: Decision, now: datetime
) -> Iterator[QueueWrite]:
    """Queues whose status is not up to date."""
    shares: dict[str, list[NodeShare]] = {}
    for share in decision.quota_shares:
        shares.setdefault(share.name, []).append(share)
    running = Counter(work.job.tenant for work in translation.workloads.running)
    waiting = Counter(work.job.tenant for work in translation.workloads.waiting)
    fair = _fair_shares(objects.queues)
    for (_, name), queue in sorted(objects.queues.items()):
        found = {share.model: share for share in shares.get(name, ())}
        total = found.get(ANY_MODEL)
        status = GpuQueueStatus(
            pending_claims=waiting[name],
            running_claims=running[name],
            guaranteed_gpus=0 if total is None else total.guaranteed_milli // WHOLE_MILLI,
            allocated_gpus=0 if total is None else total.used_milli / WHOLE_MILLI,
            borrowed_gpus=0 if total is None else total.borrowed_milli / WHOLE_MILLI,
            fair_share_percent=fair[name],
            usage=tuple(
                QueueUsage(
                    model=model,
                    allocated=share.used_milli / WHOLE_MILLI,
                    borrowed=share.borrowed_milli / WHOLE_MILLI,
                    lent=share.lent_milli / WHOLE_MILLI,
                )
                for model, share in sorted(found.items())
            ),
            observed_generation=queue.metadata.generation or None,
            conditions=_accepted(queue, translation.queues.refusals.get(name, ""), now),
        )
        if status != queue.status:
            yield QueueWrite(queue=queue, status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationWrite:
    """The new status of a reservation."""

    reservation: GpuReservation
    status: GpuReservationStatus

    def changes(self) -> dict[str, Any]:
        """A merge patch; what is no longer true is deleted."""
        new = msgspec.to_builtins(self.status)
        return {"status": {name: new.get(name) for name in self.status.__struct_encode_fields__}}


def reservation_writes(
    objects: Objects, decision: Decision, now: datetime
) -> Iterator[ReservationWrite]:
    """Reservations whose status is not up to date."""
    for (_, name), one in sorted(objects.reservations.items()):
        status = decision.reserved.statuses.get(name)
        if status is None:
            continue
        holds = status.phase in (ReservationPhase.PLANNED, ReservationPhase.ACTIVE)
        is_guaranteed = holds and not status.missing
        new = Condition(
            type=GUARANTEED,
            status=ConditionStatus.TRUE if is_guaranteed else ConditionStatus.FALSE,
            reason="GPUsMissing" if holds and status.missing else str(status.phase),
            message=sentence(status.reason),
            last_transition_time=now.replace(microsecond=0),
            observed_generation=one.metadata.generation or None,
        )
        status = msgspec.structs.replace(
            status,
            reason=sentence(status.reason),
            conditions=_with_condition(one.status.conditions, new),
        )
        if status != one.status:
            yield ReservationWrite(reservation=one, status=status)


def _fair_shares(queues: Mapping[Key, GpuQueue]) -> dict[str, float]:
    """The percentage of all GPUs that the weights give to each queue, level by level."""
    by_name = {name: queue for (_, name), queue in queues.items()}

    def siblings(name: str) -> float:
        parent = by_name[name].spec.parent
        return sum(one.spec.weight for one in by_name.values() if one.spec.parent == parent)

    def share(name: str, seen: frozenset[str]) -> float:
        queue = by_name[name]
        above = 100.0
        if queue.spec.parent in by_name and queue.spec.parent not in seen:
            above = share(queue.spec.parent, seen | {name})
        return above * queue.spec.weight / siblings(name)

    return {name: round(share(name, frozenset({name})), 1) for name in by_name}


def _accepted(queue: GpuQueue, refusal: str, now: datetime) -> tuple[Condition, ...]:
    new = Condition(
        type=ACCEPTED,
        status=ConditionStatus.FALSE if refusal else ConditionStatus.TRUE,
        reason="Contradiction" if refusal else "Enforced",
        message=sentence(refusal),
        last_transition_time=now.replace(microsecond=0),
        observed_generation=queue.metadata.generation or None,
    )
    return _with_condition(queue.status.conditions, new)


def _with_condition(old: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The conditions with a new one, which keeps its time if its status stays."""
    for one in old:
        if one.type == new.type and one.status == new.status:
            new = msgspec.structs.replace(new, last_transition_time=one.last_transition_time)
    return (*(one for one in old if one.type != new.type), new)


def event(
    one: Object,
    resource: Resource[Any],
    *,
    reason: str,
    message: str,
    is_warning: bool,
    name: str,
    now: datetime,
) -> dict[str, Any]:
    """An event about an object; one without a namespace has its events in `default`."""
    at = timestamp(now)
    about = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "namespace": one.metadata.namespace,
        "name": one.metadata.name,
        "uid": one.metadata.uid,
    }
    return {
        "metadata": {"name": name, "namespace": one.metadata.namespace or "default"},
        "involvedObject": {field: value for field, value in about.items() if value},
        "reason": reason,
        "message": sentence(message),
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": SCHEDULER_NAME},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def sentence(text: str) -> str:
    """A text of at most the length that Kubernetes accepts."""
    return text if len(text) <= LONGEST_SENTENCE else text[: LONGEST_SENTENCE - 1] + "…"


def timestamp(at: datetime) -> str:
    """A time as Kubernetes writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
