"""What is left to do after any interruption, found by comparing leases with pods.

Pure: objects in, actions out. A healthy scheduler finds nothing here but the leases of pods that
have ended. Whatever a scheduler was doing when it died, the next one finds one of these:

- an assignment with all its leases and pods that are not bound: bind them (`Completion`),
- one that can no longer be completed, or not by its deadline: give it up (`Rollback`),
- leases that no pod uses (`Release`),
- a pod that waits without leases, whose ResourceClaim has devices (`stale_claims`),
- a bound pod without its lease (`Missing`),
- a gang of which too few pods are on nodes, for too long (`HalfGang`),
- a bound pod whose claim has a time limit that the pod does not know (`Limit`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_scheduler.kubernetes.crds.claim import Exclusivity
from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    INDICES_ANNOTATION,
    SCHEDULER_NAME,
)
from gpu_scheduler.kubernetes.objects import Pod
from gpu_scheduler.kubernetes.scheduler.decision import Translation, attempt_of, in_order
from gpu_scheduler.kubernetes.scheduler.devices import HeldDevice, Holder
from gpu_scheduler.kubernetes.scheduler.dra.needs import ClaimAllocation
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Objects,
    has_ended,
    is_being_deleted,
    is_bound,
)
from gpu_scheduler.kubernetes.scheduler.workloads import Member
from gpu_scheduler.model.errors import InvalidRequest

LONGEST_DEADLINE = 2**31 - 1
"""Kubernetes accepts no longer one for a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long something may stay half done."""

    gang_ms: int = 300_000
    """A gang of which some pods are on nodes, but too few; and bindings of a gang."""
    volume_ms: int = 600_000
    """A volume that is made for a pod on its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A lease entry that no pod uses. `is_gone`: because the pod was not found, so ask again."""

    held: HeldDevice
    is_gone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A pod that has all its leases and is not bound yet."""

    pod: Pod
    node: str
    held: tuple[HeldDevice, ...]
    allocations: tuple[ClaimAllocation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """An assignment to give up: its pods that are not bound lose their leases.

    `evicted` are pods of the same gang that are bound; they leave first.
    """

    held: tuple[HeldDevice, ...]
    pods: tuple[Pod, ...]
    evicted: tuple[Pod, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A bound pod that says which GPU it has, without the lease for it."""

    pod: Pod
    node: str
    index: int
    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfGang:
    """The pods of a gang that has had too few pods on nodes for too long."""

    gang: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound pod, and the time limit of its claim; the kubelet ends the pod at its deadline."""

    pod: Pod
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """All that is to be done."""

    releases: tuple[Release, ...] = ()
    completions: tuple[Completion, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    missing: tuple[Missing, ...] = ()
    half_gangs: tuple[HalfGang, ...] = ()
    limits: tuple[Limit, ...] = ()
    stale_claims: tuple[Pod, ...] = ()
    """Pods whose ResourceClaims have devices of an attempt that was given up."""


def find_repairs(
    objects: Objects,
    translation: Translation,
    *,
    now_ms: int,
    incomplete_since_ms: Mapping[str, int],
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
) -> Repairs:
    """Compare leases with pods. `incomplete_since_ms`: since when gangs have had too few pods."""
    pods = {pod.metadata.uid: pod for pod in objects.pods.values()}
    releases: list[Release] = []
    starts: dict[str, list[HeldDevice]] = {}
    for uid, all_held in sorted(translation.leases.by_pod.items()):
        pod = pods.get(uid)
        for held in all_held:
            if pod is None or has_ended(pod):
                releases.append(Release(held=held, is_gone=pod is None))
            elif not is_bound(pod):
                starts.setdefault(held.holder.start, []).append(held)
            elif _is_stray(pod, held):
                releases.append(Release(held=held, is_gone=False))
    completions: list[Completion] = []
    rollbacks: list[Rollback] = []
    for _, held_devices in sorted(starts.items()):
        found = _judge_start(held_devices, pods, objects, translation, now_ms, deadlines)
        if isinstance(found, Rollback):
            rollbacks.append(found)
        else:
            completions += found
    given_up = {pod.metadata.uid for one in rollbacks for pod in one.evicted}
    return Repairs(
        releases=tuple(releases),
        completions=tuple(completions),
        rollbacks=tuple(rollbacks),
        missing=tuple(_missing(translation)),
        half_gangs=tuple(
            HalfGang(gang=work.job.id, pods=bound)
            for work in translation.workloads.running
            if now_ms - incomplete_since_ms.get(work.job.id, now_ms) > deadlines.gang_ms
            and (
                bound := tuple(
                    member.pod
                    for member in work.members
                    if is_bound(member.pod)
                    and not is_being_deleted(member.pod)
                    and member.uid not in given_up
                )
            )
        ),
        limits=tuple(_limits(translation)),
        stale_claims=tuple(_stale_claims(objects, translation, pods)),
    )


def _stale_claims(
    objects: Objects, translation: Translation, pods: Mapping[str, Pod]
) -> Iterator[Pod]:
    """A leader that was frozen has written an allocation after its leases were released."""
    found = {
        consumer.uid
        for claim in objects.resource_claims.values()
        if claim.our_devices
        for consumer in claim.status.reserved_for
    }
    for uid in sorted(found & pods.keys() - translation.leases.by_pod.keys()):
        pod = pods[uid]
        if pod.spec.scheduler_name == SCHEDULER_NAME and not is_bound(pod) and not has_ended(pod):
            yield pod


def _limits(translation: Translation) -> Iterator[Limit]:
    for work in translation.workloads.running:
        for member in work.members:
            seconds = None if member.claim is None else member.claim.spec.max_run_time_seconds
            if seconds is None or not is_bound(member.pod) or is_being_deleted(member.pod):
                continue
            seconds = min(seconds, LONGEST_DEADLINE)
            known = member.pod.spec.active_deadline_seconds
            if known is None or known > seconds:
                yield Limit(pod=member.pod, seconds=seconds)


def _is_stray(pod: Pod, held: HeldDevice) -> bool:
    """Tell whether a lease names a bound pod that is on another node, or has other GPUs."""
    told = pod.metadata.annotations.get(INDICES_ANNOTATION, "")
    is_other = bool(told) and str(held.index) not in told.split(",")
    return is_other or held.node != pod.spec.node_name


def _judge_start(
    held_devices: list[HeldDevice],
    pods: Mapping[str, Pod],
    objects: Objects,
    translation: Translation,
    now_ms: int,
    deadlines: Deadlines,
) -> list[Completion] | Rollback:
    """Whether the pods of an assignment that are not bound can be bound, or must be given up."""
    first = held_devices[0].holder
    by_pod: dict[str, list[HeldDevice]] = {}
    for held in held_devices:
        by_pod.setdefault(held.holder.uid, []).append(held)
    together = [
        pods[uid]
        for uid, all_held in sorted(translation.leases.by_pod.items())
        if uid in pods and any(held.holder.start == first.start for held in all_held)
    ]
    bound = tuple(
        pod
        for pod in together
        if is_bound(pod) and not is_being_deleted(pod) and not has_ended(pod)
    )

    def give_up(why: str) -> Rollback:
        return Rollback(
            held=tuple(held_devices),
            pods=tuple(pods[uid] for uid in sorted(by_pod)),
            evicted=bound if first.members > 1 else (),
            why=why,
        )

    members = {
        member.uid: member for work in translation.workloads.running for member in work.members
    }
    waits_for_volume = False
    completions: list[Completion] = []
    for uid, all_held in sorted(by_pod.items()):
        pod = pods[uid]
        if {one.index for one in all_held} != set(all_held[0].holder.devices):
            return give_up("not all of its GPUs could be leased")
        if all_held[0].holder.attempt != attempt_of(pod):
            return give_up("an earlier attempt was given up")
        if is_being_deleted(pod) or pod.spec.scheduling_gates:
            return give_up(f"pod {pod.metadata.name} may not start any more")
        rules = translation.filters.rules(members[uid].effective)
        waits_for_volume = waits_for_volume or bool(rules.volumes.unbound)
        why = rules.volumes.refusal or translation.filters.rejection(rules, all_held[0].node)
        completion = None if why else _completion(pod, members[uid], all_held, objects)
        if completion is None:
            return give_up(
                f"node {all_held[0].node} is no longer possible: it is {why}"
                if why
                else "its ResourceClaims are not those of the assignment any more"
            )
        completions.append(completion)
    if len(together) < first.members:
        return give_up("not all pods of its gang got their GPUs")
    age_ms = now_ms - min(_acquired_ms(held, now_ms) for held in held_devices)
    if waits_for_volume:
        return give_up("its volume was not made in time") if age_ms > deadlines.volume_ms else []
    if age_ms > deadlines.gang_ms:
        return give_up("not all of its pods could be bound in time")
    return completions


def _completion(
    pod: Pod, member: Member, held: list[HeldDevice], objects: Objects
) -> Completion | None:
    """What is left to do for a pod; None if its claims cannot get the devices of its leases."""
    node = held[0].node
    allocations: tuple[ClaimAllocation, ...] = ()
    if pod.spec.resource_claims:
        uuids = in_order((one.index, one.holder.uuid) for one in held)
        if member.needs is None or not member.needs.selects(node, uuids):
            return None
        try:
            allocations = member.needs.allocations(node, uuids)
        except InvalidRequest:
            return None
        for one in allocations:
            found = objects.resource_claims.get((one.claim.namespace, one.claim.name))
            if found is not None and found.our_devices not in ((), one.results):
                return None
    return Completion(pod=pod, node=node, held=tuple(held), allocations=allocations)


def _acquired_ms(held: HeldDevice, now_ms: int) -> int:
    if held.holder.since_ms:
        return held.holder.since_ms
    try:
        acquired = datetime.fromisoformat(held.lease.spec.acquire_time)
    except ValueError:
        return now_ms
    return int(acquired.timestamp() * 1000)


def _missing(translation: Translation) -> Iterator[Missing]:
    """GPUs of bound pods without a lease, as if someone had deleted it."""
    for work in translation.workloads.running:
        for member in work.members:
            pod = member.pod
            if not is_bound(pod) or pod.spec.scheduler_name != SCHEDULER_NAME:
                continue
            node = pod.spec.node_name
            told = pod.metadata.annotations.get(INDICES_ANNOTATION, "")
            indices = tuple(sorted({int(one) for one in told.split(",") if one.isdecimal()}))
            held = [
                one for one in translation.leases.by_pod.get(member.uid, ()) if one.node == node
            ]
            for index in indices:
                leased = {one.holder.uuid for one in held if one.index == index}
                slices, uuid = _allocated_of(pod, index, translation)
                pieces = [one for one in slices if one[0] not in leased]
                if not slices and not leased:
                    pieces = [(uuid, member.request.mig_profile)]
                for piece, profile in pieces:
                    holder = _restored(member, indices, piece, profile)
                    yield Missing(pod=pod, node=node, index=index, holder=holder)


def _allocated_of(
    pod: Pod, index: int, translation: Translation
) -> tuple[list[tuple[str, str]], str]:
    """The MIG slices (UUID, profile) of a GPU that a bound pod has, or else the UUID of the GPU."""
    allocated = pod.metadata.annotations.get(ALLOCATED_ANNOTATION, "").split(",")
    inventory = translation.inventories.get(pod.spec.node_name)
    gpu = None if inventory is None else inventory.gpus.get(index)
    if gpu is None:
        return [], ""
    slices = [(one.uuid, one.profile) for one in gpu.mig_slices if one.uuid in allocated]
    return slices, gpu.uuid if gpu.uuid in allocated else ""


def _restored(member: Member, indices: tuple[int, ...], uuid: str, profile: str) -> Holder:
    claim = member.claim
    is_shared = claim is not None and claim.spec.devices.exclusivity is Exclusivity.SHARED
    request = member.request
    return Holder(
        uid=member.uid,
        namespace=member.pod.metadata.namespace,
        pod=member.pod.metadata.name,
        share_milli=request.gpu_share_milli if is_shared else 1000,
        memory_mib=request.gpu_memory_mb if is_shared else 0,
        profile=profile,
        uuid=uuid,
        devices=indices,
        attempt=attempt_of(member.pod),
    )
