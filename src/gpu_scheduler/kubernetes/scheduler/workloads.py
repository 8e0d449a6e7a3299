"""Pods and claims as jobs of the engine: who waits, who runs, and who is refused, with a sentence.

A pod of the scheduler becomes a member of a job: alone, or with the other pods of its gang. Its
GPUs come from its GpuClaim (named by annotation, or by an owner that a claim names), or from
`nvidia.com/gpu`. Pods that are bound, or hold leases, run; the others wait.
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from gpu_scheduler.engine.priority import log2_milli
from gpu_scheduler.kubernetes.crds.claim import (
    Exclusivity,
    GpuClaim,
    Policy,
    TopologyMode,
)
from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    CLAIM_ANNOTATION,
    GPU_RESOURCE,
    MIG_RESOURCE,
    OWNER_ANNOTATION,
    SCHEDULER_NAME,
)
from gpu_scheduler.kubernetes.objects import Pod, once_per_object, once_per_pair
from gpu_scheduler.kubernetes.quantities import CPU, MEMORY, amount, pod_requests
from gpu_scheduler.kubernetes.scheduler.devices import MIB, DeviceLeases
from gpu_scheduler.kubernetes.scheduler.dra.needs import ClaimReader, DeviceNeeds
from gpu_scheduler.kubernetes.scheduler.filters import Filters
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Key,
    Objects,
    has_ended,
    is_being_deleted,
    is_bound,
    matches,
)
from gpu_scheduler.kubernetes.scheduler.queues import Queues
from gpu_scheduler.kubernetes.scheduler.run_times import Run
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import MAX_PRIORITY, NORMAL_PRIORITY, Job
from gpu_scheduler.model.node import canonical_model_name
from gpu_scheduler.model.request import WHOLE_MILLI, Request, Topology, mig_share_milli

_MIG_NAME = re.compile(re.escape(MIG_RESOURCE) + r"([1-7]g\..+)")
MOST_WORDS = 20
LONGEST_WORD = 100
"""What follows in a longer command does not tell which pods are alike."""
PRIORITY_DOUBLING = 300
"""Points of the engine for each doubling of a Kubernetes priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pod with its claim, and what it needs of a node.

    `effective` is the pod with the node selector of its claim, for the filters.
    """

    pod: Pod
    effective: Pod
    claim: GpuClaim | None
    request: Request
    needs: DeviceNeeds | None = None
    """Of a pod with ResourceClaims that is not on a node yet."""

    @property
    def uid(self) -> str:
        """The uid of the pod."""
        return self.pod.metadata.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A job of the engine, and the pods that are its members, in the same order."""

    job: Job
    members: tuple[Member, ...]
    start_ms: int = 0
    is_stopping: bool = False


GpuUse = tuple[str, str, int, int, int | None]
"""Queue, namespace, milli-GPUs, and from when to when (None: still) a pod has used them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangState:
    """A gang as far as its pods exist: how many hold a place, have ended, wait, and are needed."""

    placed: int
    ended: int
    waiting: int
    minimum: int

    @property
    def is_incomplete(self) -> bool:
        """Tell whether some of its pods are on nodes, but fewer than must be together."""
        return 0 < self.placed < self.minimum - self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """All jobs of the cluster."""

    waiting: tuple[Workload, ...] = ()
    running: tuple[Workload, ...] = ()
    refused: Mapping[Key, str] = field(default_factory=dict)
    """Pods that do not queue, and why."""
    gangs: Mapping[str, GangState] = field(default_factory=dict)
    forming: frozenset[Key] = frozenset()
    """Pods of gangs of which too few pods exist; most of them are being created."""
    pods_of_claims: Mapping[Key, list[Pod]] = field(default_factory=dict)
    """The pods of every claim, the oldest first."""
    usage: tuple[GpuUse, ...] = ()
    ended: tuple[Run, ...] = ()
    next_begin_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class _Group:
    """The pods of a gang, or one pod."""

    id: str
    members: list[Member] = field(default_factory=list)
    placed: list[Member] = field(default_factory=list)
    succeeded: list[Pod] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """Pods that have done their part for the controller that the others belong to."""
        owners = {_controller(member.pod) for member in (*self.placed, *self.members)} - {""}
        return sum(_controller(pod) in owners for pod in self.succeeded)

    @property
    def claim(self) -> GpuClaim | None:
        every = [*self.placed, *self.members]
        return every[0].claim if every else None


def workloads(
    objects: Objects,
    leases: DeviceLeases,
    filters: Filters,
    queues: Queues,
    reader: ClaimReader,
    *,
    now_ms: int,
    unevictable: Iterable[str] = (),
) -> Workloads:
    """All pods of the scheduler as jobs. Pods whose uid is `unevictable` are not preempted."""
    claims = ClaimFinder(objects)
    refused: dict[Key, str] = {}
    groups: dict[str, _Group] = {}
    usage: list[GpuUse] = []
    pods_of: dict[Key, list[Pod]] = {}
    for key, pod in sorted(objects.pods.items(), key=_by_age):
        if pod.spec.scheduler_name != SCHEDULER_NAME:
            continue
        claim, member, problem = _read(pod, claims, reader)
        if claim is not None:
            pods_of.setdefault(claim.key, []).append(pod)
        is_placed = is_bound(pod) or pod.metadata.uid in leases.by_pod
        if not is_placed and not has_ended(pod):
            if is_being_deleted(pod) or pod.spec.scheduling_gates:
                continue
            problem = filters.refusal(pod) or problem
            if problem:
                refused[key] = problem
                continue
        if member is None:
            claim, member = None, member_without_claim(pod)
        member = _at_most(member, _gpus_at_hand(pod, leases, filters)) if is_placed else member
        group = groups.setdefault(group_id(pod, claim), _Group(id=group_id(pod, claim)))
        used = _gpu_use(member, queues)
        if used is not None:
            usage.append(used)
        if has_ended(pod):
            if pod.status.phase == "Succeeded":
                group.succeeded.append(pod)
        elif is_placed:
            group.placed.append(member)
        else:
            group.members.append(member)
    maker = _JobMaker(objects, queues, now_ms, frozenset(unevictable))
    ended = tuple(
        _run(group.succeeded, claims, queues)
        for group in groups.values()
        if group.succeeded and not group.placed and not group.members
    )
    made = maker.make(groups, refused)
    return replace(made, usage=tuple(usage), ended=ended, pods_of_claims=pods_of)


def _read(
    pod: Pod, claims: "ClaimFinder", reader: ClaimReader
) -> tuple[GpuClaim | None, Member | None, str]:
    """The claim of a pod and what it asks for, or what is wrong with them."""
    claim = None
    try:
        claim = claims.of(pod)
        return claim, member_of(pod, claim, reader), ""
    except InvalidRequest as error:
        return claim, None, str(error)


def _run(pods: list[Pod], claims: "ClaimFinder", queues: Queues) -> Run:
    """The run of a job that has ended."""
    first = min(pods, key=lambda one: one.metadata.uid)
    claim = None
    with suppress(InvalidRequest):  # the claim was deleted
        claim = claims.of(first)
    namespace = first.metadata.namespace
    queue, _ = queues.choose(namespace, claim.spec.queue if claim is not None else "")
    return Run(
        uid=first.metadata.uid,
        queue=queue,
        namespace=namespace,
        command=command_of(first),
        limit_ms=_limit_ms(first, claim),
        start_ms=min(map(started_ms, pods)),
        end_ms=max(map(ended_ms, pods)),
    )


def _by_age(item: tuple[Key, Pod]) -> tuple[float, Key]:
    created = item[1].metadata.creation_timestamp
    return (created.timestamp() if created is not None else math.inf, item[0])


# --- from a pod to a request


class ClaimFinder:
    """Finds the claim of a pod: by its annotation, or by the controller that a claim names."""

    def __init__(self, objects: Objects) -> None:
        """Index the claims."""
        self._claims = objects.claims
        self._by_owner = {
            (namespace, claim.metadata.annotations[OWNER_ANNOTATION]): claim
            for (namespace, _), claim in sorted(objects.claims.items())
            if OWNER_ANNOTATION in claim.metadata.annotations
        }

    def of(self, pod: Pod) -> GpuClaim | None:
        """The claim of a pod, if it has one; raises if it names one that does not exist."""
        namespace = pod.metadata.namespace
        name = pod.metadata.annotations.get(CLAIM_ANNOTATION, "")
        if name:
            claim = self._claims.get((namespace, name))
            if claim is None:
                raise InvalidRequest(
                    f"its GpuClaim '{name}' does not exist in namespace '{namespace}'"
                )
            return claim
        for owner in pod_owners(pod):
            claim = self._by_owner.get((namespace, owner))
            if claim is not None:
                return claim
        return None


def pod_owners(pod: Pod) -> Iterable[str]:
    """The controllers of a pod as `Kind/name`, also those that are only known by a label."""
    labels = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        yield f"{owner.kind}/{owner.name}"
        suffix = labels.get("pod-template-hash", "")
        if owner.kind == "ReplicaSet" and suffix and owner.name.endswith(f"-{suffix}"):
            yield f"Deployment/{owner.name.removesuffix(f'-{suffix}')}"
    for kind, label in (
        ("JobSet", "jobset.sigs.k8s.io/jobset-name"),
        ("LeaderWorkerSet", "leaderworkerset.sigs.k8s.io/name"),
    ):
        if label in labels:
            yield f"{kind}/{labels[label]}"


def _controller(pod: Pod) -> str:
    """The uid of the controller of a pod; empty if it has none."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def group_id(pod: Pod, claim: GpuClaim | None) -> str:
    """The id of the job of a pod; the engine names it in reasons."""
    if claim is None or claim.spec.gang is None:
        return f"{pod.metadata.namespace}/{pod.metadata.name}"
    return f"{pod.metadata.namespace}/{claim.spec.gang.group or claim.metadata.name} (gang)"


def member_of(pod: Pod, claim: GpuClaim | None, reader: ClaimReader | None = None) -> Member:
    """What a pod asks for; raises if its claims contradict it, or cannot be allocated.

    Without a `reader`, ResourceClaims are not looked into.
    """
    needs = None
    if pod.spec.resource_claims and not is_bound(pod) and reader is not None:
        needs = reader.needs(pod, claim)
    if needs is None:
        return _member_without_needs(pod, claim)
    return _member(pod, claim, needs)


@once_per_pair
def _member_without_needs(pod: Pod, claim: GpuClaim | None) -> Member:
    return _member(pod, claim, None)


def _member(pod: Pod, claim: GpuClaim | None, needs: DeviceNeeds | None) -> Member:
    if claim is None:
        return _member_by_requests(pod, needs)
    requests = pod_requests(pod)
    plain_gpus = requests.get(GPU_RESOURCE, 0)
    cpu_milli, memory_mb = requests.get(CPU, 0), -(-requests.get(MEMORY, 0) // MIB)
    name, devices = claim.metadata.name, claim.spec.devices
    if devices.exclusivity is Exclusivity.SHARED and plain_gpus:
        raise InvalidRequest(
            f"its GpuClaim '{name}' is for shared GPUs, but the pod asks for {plain_gpus} whole "
            f"ones by {GPU_RESOURCE}; leave that out"
        )
    slices = _plain_slices(pod)
    if slices and slices != {devices.mig_profile: devices.count}:
        asked = ", ".join(
            f"{count} {MIG_RESOURCE}{slices_of}" for slices_of, count in slices.items()
        )
        raise InvalidRequest(
            f"its GpuClaim '{name}' is for {devices.count} of MIG profile "
            f"'{devices.mig_profile}', but the pod asks for {asked}; make both equal"
        )
    if plain_gpus not in (0, devices.count):
        raise InvalidRequest(
            f"its GpuClaim '{name}' is for {devices.count} GPUs, but the pod asks for "
            f"{plain_gpus} by {GPU_RESOURCE}; make both equal, or leave out {GPU_RESOURCE}"
        )
    request = claim_request(claim, cpu_milli, memory_mb)
    return Member(
        pod=pod,
        effective=_with_selector(pod, claim),
        claim=claim,
        request=request,
        needs=needs,
    )


def claim_request(claim: GpuClaim, cpu_milli: int, memory_mb: int) -> Request:
    """What a pod with this claim, CPU and memory asks of the engine."""
    devices, topology = claim.spec.devices, claim.spec.topology
    gpu_memory_mb = 0
    if devices.memory is not None:
        gpu_memory_mb = -(-amount(MEMORY, str(devices.memory)) // MIB)
    share_milli = WHOLE_MILLI
    if devices.exclusivity is Exclusivity.SHARED and not devices.mig_profile:
        share_milli = round((devices.fraction or 0) * WHOLE_MILLI)
    is_required = topology is not None and topology.mode is TopologyMode.REQUIRED
    bandwidth = 0 if topology is None else topology.min_bandwidth_gbps
    return Request(
        gpu_count=devices.count,
        gpu_share_milli=share_milli,
        gpu_memory_mb=gpu_memory_mb,
        gpu_models=tuple(sorted({canonical_model_name(model) for model in devices.models})),
        mig_profile=devices.mig_profile,
        cpu_milli=cpu_milli,
        memory_mb=memory_mb,
        topology=Topology.REQUIRE_ISLAND if is_required else Topology.PREFER_ISLAND,
        contiguous=devices.policy is Policy.CONTIGUOUS,
        min_bandwidth_gbps=bandwidth if is_required else 0,
        preferred_bandwidth_gbps=0 if is_required else bandwidth,
        spread=devices.policy is Policy.SPREAD,
    )


def _with_selector(pod: Pod, claim: GpuClaim) -> Pod:
    selector = {**claim.spec.node_selector, **pod.spec.node_selector}
    for label, value in claim.spec.node_selector.items():
        if selector[label] != value:
            raise InvalidRequest(
                f"its GpuClaim '{claim.metadata.name}' selects nodes with {label}={value}, but the "
                f"pod those with {label}={selector[label]}; make both equal"
            )
    if selector == pod.spec.node_selector:
        return pod
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector)
    )


def _member_by_requests(pod: Pod, needs: DeviceNeeds | None) -> Member:
    if needs is None:
        asked = sorted(
            name
            for name, count in pod_requests(pod).items()
            if count and (name == GPU_RESOURCE or name.startswith(MIG_RESOURCE))
        )
        if len(asked) > 1:
            raise InvalidRequest(
                f"it asks for GPUs by {' and '.join(asked)}; a pod gets GPUs of one kind"
            )
        if asked and asked != [GPU_RESOURCE]:
            mig_share_milli(asked[0].removeprefix(MIG_RESOURCE))
        return member_without_claim(pod)
    plain = _plain_request(pod)
    request = needs.request(plain.cpu_milli, plain.memory_mb)
    return Member(pod=pod, effective=pod, claim=None, request=request, needs=needs)


def member_without_claim(pod: Pod) -> Member:
    """A pod by its own requests; if it is placed, its leases say which GPUs it has."""
    return Member(pod=pod, effective=pod, claim=None, request=_plain_request(pod))


def _gpus_at_hand(pod: Pod, leases: DeviceLeases, filters: Filters) -> int:
    """How many GPUs a placed pod can have: those that it holds, or those of its node."""
    load = filters.loads.get(pod.spec.node_name)
    of_node = 0 if load is None else load.allocatable.get(GPU_RESOURCE, 0)
    return max(len(leases.by_pod.get(pod.metadata.uid, ())), of_node)


def _at_most(member: Member, gpus: int) -> Member:
    """A pod that a user has put on a node does not count for more GPUs than it can have."""
    request = member.request
    if request.mig_profile or request.gpu_count <= gpus:
        return member
    fewer = Request(cpu_milli=request.cpu_milli, memory_mb=request.memory_mb)
    return replace(member, request=replace(request, gpu_count=gpus) if gpus else fewer)


def _plain_slices(pod: Pod) -> dict[str, int]:
    """How many MIG slices of which profiles a pod asks for by extended resources."""
    return {
        found[1]: count
        for name, count in sorted(pod_requests(pod).items())
        if count and (found := _MIG_NAME.fullmatch(name)) is not None
    }


@once_per_object
def _plain_request(pod: Pod) -> Request:
    requests = pod_requests(pod)
    allocated = pod.metadata.annotations.get(ALLOCATED_ANNOTATION, "")
    by_claims = len(allocated.split(",")) if pod.spec.resource_claims and allocated else 0
    gpus = requests.get(GPU_RESOURCE, 0) or by_claims
    profile, slices = next(iter(_plain_slices(pod).items()), ("", 0))
    return Request(
        gpu_count=gpus or slices,
        mig_profile="" if gpus else profile,
        cpu_milli=requests.get(CPU, 0),
        memory_mb=-(-requests.get(MEMORY, 0) // MIB),
    )


def engine_priority(pod_priority: int) -> int:
    """The priority of a PriorityClass on the engine's scale: 0 is normal, then by doublings."""
    if pod_priority <= 0:
        return max(0, NORMAL_PRIORITY + pod_priority)
    points = log2_milli(pod_priority + 1) * PRIORITY_DOUBLING // 1000
    return min(MAX_PRIORITY, NORMAL_PRIORITY + points)


# --- from pods to jobs


class _JobMaker:
    """Numbers the groups by age, and makes a waiting and a running job of each."""

    def __init__(
        self,
        objects: Objects,
        queues: Queues,
        now_ms: int,
        unevictable: frozenset[str],
    ) -> None:
        self._objects = objects
        self._queues = queues
        self._now_ms = now_ms
        self._unevictable = unevictable
        self._waiting: list[Workload] = []
        self._running: list[Workload] = []
        self._pending: dict[str, int] = {}
        self._next_begin_ms: int | None = None

    def make(self, groups: Mapping[str, _Group], refused: dict[Key, str]) -> Workloads:
        gangs: dict[str, GangState] = {}
        forming: set[Key] = set()
        for number, group in enumerate(groups.values(), 1):
            # Two numbers for each group: what runs of it, and what waits.
            if group.placed:
                self._add_running(group, 2 * number)
            if group.claim is not None and group.claim.spec.gang is not None:
                gang = gangs[group.id] = GangState(
                    placed=len(group.placed),
                    ended=group.ended,
                    waiting=len(group.members),
                    minimum=_gang_minimum(group),
                )
                if gang.placed + gang.ended + gang.waiting < gang.minimum:
                    forming |= {member.pod.key for member in group.members}
            if group.members:
                refusal = self._add_waiting(group, 2 * number + 1)
                for member in group.members if refusal else ():
                    refused[member.pod.key] = refusal
        return Workloads(
            waiting=tuple(self._waiting),
            running=tuple(self._running),
            refused=refused,
            gangs=gangs,
            forming=frozenset(forming),
            next_begin_ms=self._next_begin_ms,
        )

    def _add_waiting(self, group: _Group, number: int) -> str:
        """Add a job for the pods that wait; or tell why they may not queue."""
        claim = group.claim
        members, minimum, refusal = _gang_part(group)
        if refusal:
            return refusal
        begin_ms = _ms(claim.spec.begin_time) if claim is not None else 0
        if begin_ms > self._now_ms:
            self._next_begin_ms = min(begin_ms, self._next_begin_ms or begin_ms)
            return f"its GpuClaim asks not to begin before {_iso(claim)}"
        queue, refusal = self._queue_of(group)
        if refusal:
            return refusal
        tenant = self._queues.tenants.get(queue)
        limit = None if tenant is None else tenant.quota.pending_jobs
        self._pending[queue] = self._pending.get(queue, 0) + 1
        if limit is not None and self._pending[queue] > limit:
            return f"its GpuQueue '{queue}' lets {limit} claims wait at once, and that many wait"
        try:
            job = self._job(group, number, queue, members, minimum)
        except InvalidRequest as error:
            return str(error)
        self._waiting.append(Workload(job=job, members=members))
        return ""

    def _add_running(self, group: _Group, number: int) -> None:
        members = tuple(group.placed)
        queue, _ = self._queue_of(group)
        starts = [started_ms(member.pod) for member in members]
        self._running.append(
            Workload(
                job=self._job(group, number, queue, members, len(members)),
                members=members,
                start_ms=min((start for start in starts if start), default=self._now_ms),
                is_stopping=any(is_being_deleted(member.pod) for member in members),
            )
        )

    def _queue_of(self, group: _Group) -> tuple[str, str]:
        first = (*group.placed, *group.members)[0]
        wanted = first.claim.spec.queue if first.claim is not None else ""
        return self._queues.choose(first.pod.metadata.namespace, wanted)

    def _job(
        self, group: _Group, number: int, queue: str, members: tuple[Member, ...], minimum: int
    ) -> Job:
        first, claim = members[0], group.claim
        priority = None if claim is None else claim.spec.priority
        if priority is None:
            priority = max(engine_priority(member.pod.spec.priority) for member in members)
        preemptible = None if claim is None else claim.spec.preemptible
        if preemptible is None:
            preemptible = self._queues.preemptible.get(queue, True)
        topology = None if claim is None else claim.spec.topology
        return Job(
            id=group.id,
            number=number,
            submit_ms=min(_ms(member.pod.metadata.creation_timestamp) for member in members),
            tenant=queue,
            user=first.pod.metadata.namespace,
            name=first.pod.metadata.name,
            command=command_of(first.pod),
            members=tuple(member.request for member in members),
            min_members=minimum,
            priority=priority,
            preemptible=preemptible and not any(self._is_protected(m.pod) for m in members),
            max_runtime_ms=limit_ms(members),
            same_rack=topology is not None
            and topology.same_rack
            and topology.mode is TopologyMode.REQUIRED,
        )

    def _is_protected(self, pod: Pod) -> bool:
        """Tell whether an eviction of the pod would fail now, as far as is known."""
        if pod.metadata.uid in self._unevictable:
            return True
        return is_bound(pod) and any(
            namespace == pod.metadata.namespace
            and budget.status.disruptions_allowed < 1
            and matches(budget.spec.selector, pod.metadata.labels)
            for (namespace, _), budget in self._objects.budgets.items()
        )


def _gang_minimum(group: _Group) -> int:
    every = (*group.placed, *group.members)
    return max(
        (
            member.claim.spec.gang.min_members
            for member in every
            if member.claim is not None and member.claim.spec.gang is not None
        ),
        default=1,
    )


def _gang_part(group: _Group) -> tuple[tuple[Member, ...], int, str]:
    """The pods of a group that queue now, how many must start together, and why none may."""
    members = tuple(group.members)
    claim = group.claim
    if claim is None or claim.spec.gang is None:
        return members, 1, ""
    minimum = _gang_minimum(group)
    here = len(group.placed) + group.ended
    if here + len(members) < minimum:
        return (
            (),
            0,
            f"its gang has {here + len(members)} of the {minimum} pods that must start together",
        )
    most = claim.spec.gang.max_members
    if most is not None:
        members = members[: max(0, most - len(group.placed))]
    if not members:
        return (), 0, f"its gang has {len(group.placed)} pods on nodes, which is its maximum"
    return members, min(len(members), max(1, minimum - here)), ""


def limit_ms(members: tuple[Member, ...]) -> int:
    """The longest run time of the members; 0 if one has no limit."""
    limits = [_limit_ms(member.pod, member.claim) for member in members]
    return 0 if 0 in limits else max(limits)


def _limit_ms(pod: Pod, claim: GpuClaim | None) -> int:
    given = (
        pod.spec.active_deadline_seconds,
        None if claim is None else claim.spec.max_run_time_seconds,
    )
    return min((seconds for seconds in given if seconds is not None), default=0) * 1000


def _gpu_use(member: Member, queues: Queues) -> GpuUse | None:
    """The use of GPUs that counts for the fair share of a queue; None if a pod never had any."""
    pod = member.pod
    start_ms = started_ms(pod)
    if not member.request.gpu_milli or not start_ms:
        return None
    queue, _ = queues.choose(
        pod.metadata.namespace, member.claim.spec.queue if member.claim is not None else ""
    )
    end_ms = ended_ms(pod) if has_ended(pod) else None
    return queue, pod.metadata.namespace, member.request.gpu_milli, start_ms, end_ms


def started_ms(pod: Pod) -> int:
    """When a pod was bound; 0 if it was not."""
    for one in pod.status.conditions:
        if one.type == "PodScheduled" and one.status == "True":
            return _ms(one.last_transition_time)
    return _ms(pod.status.start_time)


def ended_ms(pod: Pod) -> int:
    """When a pod ended that has ended, as far as its conditions tell."""
    start_ms = started_ms(pod)
    ready = [one for one in pod.status.conditions if one.type == "Ready"]
    return max(start_ms, _ms(ready[0].last_transition_time) if ready else start_ms)


@once_per_object
def command_of(pod: Pod) -> tuple[str, ...]:
    """What tells alike pods: the command of the first container, or its image if it has none."""
    if not pod.spec.containers:
        return ()
    first = pod.spec.containers[0]
    words = (*first.command, *first.args) or (first.image,)
    return tuple(word[:LONGEST_WORD] for word in words[:MOST_WORDS])


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)


def _iso(claim: GpuClaim | None) -> str:
    begin = None if claim is None else claim.spec.begin_time
    return "" if begin is None else begin.strftime("%Y-%m-%dT%H:%M:%SZ")
