"""One decision: objects to engine state, `decide`, and the plan as assignments of pods to GPUs.

Pure, but for the log of errors in forecasts and explanations. What comes in is frozen (`Objects`,
`Memory`, the policy and the time); what goes out says which pods get which GPUs of which nodes,
which pods to evict, and why the others wait.

The engine knows nodes, GPUs, CPU and memory. All other rules of Kubernetes become the set of nodes
that a pod may have. Rules between pods of one plan (a host port that two of them want) are checked
after the engine has decided; where a pod breaks one, that node is taken from its set and the engine
decides again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import structlog

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.explain import Reasons
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.forecast import Foresight, Guess, RunTime, foresee
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.quota.node_shares import NodeShare, node_shares
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.kubernetes.crds.node_status import Gpu
from gpu_scheduler.kubernetes.names import (
    ATTEMPT_ANNOTATION,
    GPU_RESOURCE,
    MIG_RESOURCE,
    SCHEDULER_NAME,
    device_lease_name,
)
from gpu_scheduler.kubernetes.objects import PersistentVolumeClaim, Pod
from gpu_scheduler.kubernetes.quantities import CPU, MEMORY, pod_requests
from gpu_scheduler.kubernetes.scheduler.devices import (
    MIB,
    DeviceLeases,
    Holder,
    Inventory,
    inventories,
)
from gpu_scheduler.kubernetes.scheduler.dra.needs import ClaimAllocation, ClaimReader
from gpu_scheduler.kubernetes.scheduler.filters import Filters
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Key,
    Objects,
    is_being_deleted,
    is_bound,
)
from gpu_scheduler.kubernetes.scheduler.queues import Queues
from gpu_scheduler.kubernetes.scheduler.reservations import (
    ReservationMemory,
    Reserved,
    reserve,
)
from gpu_scheduler.kubernetes.scheduler.run_times import RunTimes
from gpu_scheduler.kubernetes.scheduler.workloads import (
    GangState,
    Member,
    Workload,
    Workloads,
    workloads,
)
from gpu_scheduler.ledger.decayed_usage import Account, DecayedUsage
from gpu_scheduler.model.cluster_snapshot import AccountUsage, Running, Snapshot, Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import NOT, RULES_LABEL
from gpu_scheduler.model.node import Node as EngineNode
from gpu_scheduler.model.plan import (
    Allocation,
    DeviceShare,
    Placement,
    Plan,
    PreemptionReason,
    Reservation,
)
from gpu_scheduler.model.quota_tree import WHOLE_CLUSTER
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.model.tenant import Tenant

_TenantUsage = tuple[tuple[str, AccountUsage], ...]
_UserUsage = tuple[tuple[tuple[str, str], AccountUsage], ...]

log = structlog.get_logger("kube-scheduler")
OTHERS_FROM = 1 << 40
"""The first job number of what other pods hold; numbers of jobs are smaller."""
USAGE_HALF_LIFE_MS = 7 * 86_400_000
RECENT_HALF_LIFE_MS = 3_600_000
OTHER_PODS = "other pods"
"""The tenant of what other schedulers have placed on the nodes."""
MOST_ROUNDS = 32
"""So often the engine decides again because pods of one plan exclude each other."""
MOST_FORECAST = 500
"""With more waiting jobs than that, expected starts are left out: a roll-out takes too long."""
LACK_OF_ROOM = frozenset(
    {
        ReasonCode.RESOURCES,
        ReasonCode.RESERVED,
        ReasonCode.BEHIND,
        ReasonCode.WINDOW,
        ReasonCode.WINDOW_AHEAD,
        ReasonCode.CLAIMED,
        ReasonCode.NO_NODES,
        ReasonCode.NODES_CLOSED,
        ReasonCode.NEVER_FITS,
    }
)
"""With these reasons, more nodes could help; with all others, for instance a quota, not."""
MOST_TOLD = 4
"""So many kinds of excluded nodes are named in a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a scheduler remembers between two decisions; without it decisions are only less steady.

    `unevictable` are pods whose eviction the API server has refused a moment ago.
    """

    reservations: tuple[Reservation, ...] = ()
    unevictable: frozenset[str] = frozenset()
    advance: ReservationMemory = field(default_factory=dict)
    run_times: RunTimes = field(default_factory=RunTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedDevice:
    """A GPU, or a part of one, for a pod."""

    index: int
    uuid: str
    model: str
    share_milli: int
    memory_mib: int
    profile: str = ""
    gpu_memory_mib: int = 0
    """All memory of the GPU; 0 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPod:
    """A pod, its node and its GPUs. `unbound` are its claims whose volumes the node decides."""

    member: Member
    node: str
    devices: tuple[AssignedDevice, ...]
    unbound: tuple[PersistentVolumeClaim, ...] = ()

    @property
    def pod(self) -> Pod:
        """The pod as it was when the decision was made."""
        return self.member.pod

    @property
    def allocations(self) -> tuple[ClaimAllocation, ...]:
        """What its ResourceClaims get."""
        if self.member.needs is None:
            return ()
        return self.member.needs.allocations(
            self.node, in_order((device.index, device.uuid) for device in self.devices)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Pods that get their places together or not at all."""

    job_id: str
    pods: tuple[AssignedPod, ...]

    def holder(
        self, one: AssignedPod, device: AssignedDevice, start: str, since_ms: int = 0
    ) -> Holder:
        """What the lease of a GPU says about a pod; `start` is unique for this attempt."""
        return Holder(
            uid=one.pod.metadata.uid,
            namespace=one.pod.metadata.namespace,
            pod=one.pod.metadata.name,
            share_milli=device.share_milli,
            memory_mib=device.memory_mib,
            profile=device.profile,
            uuid=device.uuid,
            start=start,
            members=len(self.pods),
            devices=tuple(sorted({each.index for each in one.devices})),
            attempt=attempt_of(one.pod),
            since_ms=since_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEviction:
    """A pod that has to go, for whom, and why in one word of the engine."""

    pod: Pod
    for_job_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """Why a pod waits, as a sentence, and what is known about its turn.

    With `lacks_room`, more nodes could help. `nominated` is the node on which room is being made.
    """

    pod: Pod
    reason: str
    lacks_room: bool = False
    nominated: str = ""
    position: int | None = None
    is_first: bool = True
    """Whether it is the first pod of its job, whose status stands for the whole job."""
    likely_ms: int | None = None
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, and what to tell."""

    assignments: tuple[Assignment, ...] = ()
    evictions: tuple[PodEviction, ...] = ()
    waiting: Mapping[Key, WaitingPod] = field(default_factory=dict)
    gangs: Mapping[str, GangState] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    reserved: Reserved = Reserved()  # noqa: RUF009 - frozen
    quota_shares: tuple[NodeShare, ...] = ()
    next_begin_ms: int | None = None
    is_complete: bool = True


def attempt_of(pod: Pod) -> str:
    """The number of attempts to assign a pod that were given up."""
    return pod.metadata.annotations.get(ATTEMPT_ANNOTATION, "0")


def in_order(devices: Iterable[tuple[int, str]]) -> list[str]:
    """UUIDs by the index of their GPU: the order in which claims and annotations name them."""
    return [uuid for _, uuid in sorted(devices)]


def make_decision(
    objects: Objects,
    policy: Policy,
    now_ms: int,
    memory: Memory = Memory(),  # noqa: B008 - frozen
    *,
    with_forecast: bool = True,
) -> Decision:
    """Decide what to assign and to evict now, and say why the others wait."""
    return Translation(objects, policy, now_ms, memory).decide(with_forecast=with_forecast)


class Translation:
    """The objects of one moment in the engine's terms, and back."""

    def __init__(self, objects: Objects, policy: Policy, now_ms: int, memory: Memory) -> None:
        """Read the objects once; a decision may ask the engine several times."""
        self._objects = objects
        # The kubelet ends a pod at its own limit only; without one it may run for ever.
        self._policy = replace(policy, default_limit_ms=ENDLESS_MS)
        self._assumed_ms = policy.default_limit_ms
        self._now_ms = now_ms
        self._memory = memory
        self.leases = DeviceLeases.of(objects.leases.values())
        self.inventories = inventories(objects, now_ms)
        self.filters = Filters(objects)
        self.queues = Queues.of(objects.queues)
        self.reader = ClaimReader(objects, self.inventories, self.leases)
        self.workloads: Workloads = workloads(
            objects,
            self.leases,
            self.filters,
            self.queues,
            self.reader,
            now_ms=now_ms,
            unevictable=memory.unevictable,
        )
        self._waiting = {work.job.id: work for work in self.workloads.waiting}
        self._running = {f"run:{work.job.id}": work for work in self.workloads.running}
        self._allowed: dict[bytes, _AllowedNodes] = {}
        self._allowed_of = {
            member.uid: self._find_allowed(member)
            for work in self.workloads.waiting
            for member in work.members
        }

    def decide(self, *, with_forecast: bool = True) -> Decision:
        """Let the engine decide, again as long as pods of its plan exclude each other."""
        excluded: dict[tuple[str, int], frozenset[str]] = {}
        for _ in range(MOST_ROUNDS):
            state = self.state(excluded)
            reserved = reserve(
                state,
                self._objects.reservations,
                self.queues,
                self._memory.advance,
                self._now_ms,
            )
            plan = decide(state, self._policy, self._now_ms)
            assignments, conflicts = self.checked(plan)
            if not conflicts:
                break
            for place, node in conflicts:
                excluded[place] = excluded.get(place, frozenset()) | {node}
        decision = self._decision(state, plan, assignments, with_forecast=with_forecast)
        return replace(
            decision,
            reserved=reserved,
            evictions=(*decision.evictions, *self._evictions_for(reserved)),
        )

    # --- which nodes a pod may have

    def _find_allowed(self, member: Member) -> "_AllowedNodes":
        """The nodes that Kubernetes allows for a pod; worked out once for pods that are alike."""
        uses_gpus = member.request.device_count > 0
        needs = member.needs
        key = self.filters.signature(member.effective) + (b"g" if uses_gpus else b"")
        key += b"" if needs is None else needs.key
        found = self._allowed.get(key)
        if found is None:
            rules = self.filters.rules(member.effective)
            names = set()
            excluded: dict[str, int] = {}
            for name, load in self.filters.loads.items():
                why = self.filters.rejection(rules, name, engine_plans=True)
                if not why and uses_gpus and _has_foreign_gpus(load.pods.values()):
                    why = "with GPUs in use by pods of another scheduler"
                if not why and needs is not None:
                    why = needs.rejections.get(name, "")
                if why:
                    excluded[why] = excluded.get(why, 0) + 1
                else:
                    names.add(name)
            found = _AllowedNodes(number=len(self._allowed), names=names, excluded=excluded)
            self._allowed[key] = found
        return found

    # --- objects to state

    def state(self, excluded: Mapping[tuple[str, int], frozenset[str]]) -> ClusterState:
        """The engine's state of the cluster; `excluded` as in `snapshot`."""
        state = ClusterState.from_snapshot(self.snapshot(excluded), self._policy)
        if self.queues.tree:
            state.set_quota_tree(self.queues.tree)
        return state

    def snapshot(self, excluded: Mapping[tuple[str, int], frozenset[str]]) -> Snapshot:
        """The state of the cluster; `excluded` are nodes that a member of a job must not have."""
        labels: dict[str, list[tuple[str, str]]] = {}
        for allowed in self._allowed.values():
            for name in allowed.names if allowed.excluded else ():
                labels.setdefault(name, []).append((RULES_LABEL, str(allowed.number)))
        tenant_usage, user_usage = self._usage()
        return Snapshot(
            nodes=tuple(
                replace(one.node, labels=tuple(labels.get(name, ())))
                for name, one in sorted(self.inventories.items())
            ),
            tenants=(
                *(tenant for _, tenant in sorted(self.queues.tenants.items())),
                Tenant(id=OTHER_PODS),
            ),
            waiting=tuple(
                Waiting(
                    job=self._with_rules(work, excluded),
                    expected_ms=work.job.max_runtime_ms or self._assumed_ms,
                    since_ms=work.job.submit_ms,
                )
                for work in self.workloads.waiting
            ),
            running=tuple(self._held_resources()),
            reservations=tuple(self._kept_reservations()),
            tenant_usage=tenant_usage,
            user_usage=user_usage,
        )

    def _with_rules(
        self, work: Workload, excluded: Mapping[tuple[str, int], frozenset[str]]
    ) -> Job:
        members = []
        for place, member in enumerate(work.members):
            labels = []
            allowed = self._allowed_of[member.uid]
            if allowed.excluded:
                labels.append((RULES_LABEL, str(allowed.number)))
            without = excluded.get((work.job.id, place))
            if without:
                labels.append((NOT, ",".join(sorted(without))))
            request = member.request
            if labels:
                request = replace(request, node_labels=tuple(sorted(labels)))
            members.append(request)
        if all(new is member.request for new, member in zip(members, work.members, strict=True)):
            return work.job
        return replace(work.job, members=tuple(members))

    def _kept_reservations(self) -> Iterator[Reservation]:
        """The reservations of jobs that wait still, on nodes that are still as they were."""
        for one in self._memory.reservations:
            work = self._waiting.get(one.job_id)
            if work is None or any(
                placement.member >= len(work.members) for placement in one.placements
            ):
                continue
            if all(self._exists(placement) for placement in one.placements):
                yield replace(one, job_number=work.job.number)

    def _exists(self, placement: Placement) -> bool:
        found = self.inventories.get(placement.node_id)
        if found is None:
            return False
        known = {device.index for device in found.node.devices}
        return all(device.index in known for device in placement.devices)

    def _held_resources(self) -> Iterator[Running]:
        """What pods hold of the nodes: ours by their leases, others by their requests.

        A node may hold more than it has (it has shrunk, or pods were forced on it); the engine is
        told no more than the node has.
        """
        rooms = {name: _Room(one.node) for name, one in self.inventories.items()}
        counted: set[str] = set()
        for allocation_id, work in self._running.items():
            placements = []
            for place, member in enumerate(work.members):
                counted.add(member.uid)
                node, shares = self._held_devices(member)
                if node in rooms:
                    placements.append(rooms[node].take(place, member.request, shares))
            limit_ms = work.job.max_runtime_ms or self._assumed_ms
            yield Running(
                job=work.job,
                allocation=Allocation(
                    id=allocation_id,
                    job_id=work.job.id,
                    task=None,
                    attempt=1,
                    placements=tuple(placements),
                    start_ms=work.start_ms,
                ),
                expected_end_ms=max(work.start_ms + limit_ms, self._now_ms + 1),
                limit_end_ms=work.start_ms + (work.job.max_runtime_ms or ENDLESS_MS),
                stopping=work.is_stopping,
            )
        # Leases without a pod are released by the repair; until then their GPUs are taken.
        taken: dict[str, list[DeviceShare]] = {}
        for (node, index), holders in sorted(self.leases.by_device.items()):
            for holder in holders:
                now_at = self._index_now(node, index, holder)
                if holder.uid not in counted:
                    taken.setdefault(node, []).append(_share_of(now_at, holder))
                if now_at != index:
                    # The lease of this index cannot be had, whichever GPU has the index now.
                    taken.setdefault(node, []).append(_share_of(index, holder))
        for name, share in self.reader.unleased():
            taken.setdefault(name, []).append(share)
        for (name, index), lease_name in self._device_names():
            if lease_name in {lease.metadata.name for lease in self.leases.unreadable}:
                taken.setdefault(name, []).append(DeviceShare(index, WHOLE_MILLI, 0))
        for number, (name, room) in enumerate(sorted(rooms.items())):
            others = [
                pod_requests(pod)
                for pod in self.filters.loads[name].pods.values()
                if pod.metadata.uid not in counted
            ]
            request = Request(
                cpu_milli=sum(one.get(CPU, 0) for one in others),
                memory_mb=sum(-(-one.get(MEMORY, 0) // MIB) for one in others),
            )
            shares = taken.get(name, [])
            if request.cpu_milli or request.memory_mb or shares:
                yield _of_others(name, number, room.take(0, request, shares), self._now_ms)

    def _held_devices(self, member: Member) -> tuple[str, list[DeviceShare]]:
        """The node of a placed pod, and its GPUs there."""
        held = self.leases.by_pod.get(member.uid, ())
        node = member.pod.spec.node_name or (held[0].node if held else "")
        return node, [
            _share_of(self._index_now(node, one.index, one.holder), one.holder)
            for one in held
            if one.node == node
        ]

    def _index_now(self, node: str, index: int, holder: Holder) -> int:
        """The index of a leased GPU. When one GPU is lost, the driver renumbers the others."""
        inventory = self.inventories.get(node)
        gpus = {} if inventory is None else inventory.gpus
        if index in gpus and _has_piece(gpus[index], holder.uuid):
            return index
        return next((gpu.index for gpu in gpus.values() if _has_piece(gpu, holder.uuid)), index)

    def _device_names(self) -> Iterator[tuple[tuple[str, int], str]]:
        if not self.leases.unreadable:
            return
        for name, one in self.inventories.items():
            for device in one.node.devices:
                yield (name, device.index), device_lease_name(name, device.index)

    def _usage(self) -> tuple[_TenantUsage, _UserUsage]:
        """The decayed usage of queues and namespaces, from the pods that still exist."""
        usage = DecayedUsage(
            half_life_ms=USAGE_HALF_LIFE_MS, recent_half_life_ms=RECENT_HALF_LIFE_MS
        )
        changes: list[tuple[int, int, str, str]] = []
        for queue, namespace, gpu_milli, start_ms, end_ms in self.workloads.usage:
            changes.append((start_ms, gpu_milli, queue, namespace))
            if end_ms is not None:
                changes.append((max(start_ms, end_ms), -gpu_milli, queue, namespace))
        accounts: dict[tuple[str, str], None] = {}
        for at_ms, gpu_milli, queue, namespace in sorted(changes, key=lambda one: one[0]):
            accounts[queue, namespace] = None
            for account in (queue, (queue, namespace)):
                if gpu_milli > 0:
                    usage.hold(account, gpu_milli, at_ms)
                else:
                    usage.release(account, -gpu_milli, at_ms)

        def of(account: Account) -> AccountUsage:
            return AccountUsage(
                usage=usage.usage_at(account, self._now_ms),
                recent_gpu_milli=usage.recent_at(account, self._now_ms),
            )

        queues = sorted({queue for queue, _ in accounts})
        return (
            tuple((queue, of(queue)) for queue in queues),
            tuple((account, of(account)) for account in sorted(accounts)),
        )

    # --- plan to objects

    def checked(self, plan: Plan) -> tuple[list[Assignment], list[tuple[tuple[str, int], str]]]:
        """The starts of a plan as assignments, and the members that break a rule on their node.

        All rules are checked against what is bound and what the same plan binds before.
        """
        if not plan.starts:
            return [], []
        filters = Filters(self._objects)
        slices = _FreeSlices(self.inventories, self.leases, self.reader.unleased_slices())
        assignments: list[Assignment] = []
        conflicts: list[tuple[tuple[str, int], str]] = []
        for start in plan.starts:
            work = self._waiting[start.job_id]
            pods = []
            for placement in start.placements:
                member = work.members[placement.member]
                rules = filters.rules(member.effective)
                devices = self._devices(placement, slices)
                needs, uuids = member.needs, [one.uuid for one in devices or ()]
                is_selected = needs is None or needs.selects(placement.node_id, uuids)
                if (
                    devices is None
                    or not is_selected
                    or filters.rejection(rules, placement.node_id)
                ):
                    conflicts.append(((start.job_id, placement.member), placement.node_id))
                    continue
                filters.add(member.effective, placement.node_id)
                pods.append(
                    AssignedPod(
                        member=member,
                        node=placement.node_id,
                        devices=devices,
                        unbound=rules.volumes.unbound,
                    )
                )
            if len(pods) == len(start.placements):
                assignments.append(Assignment(job_id=start.job_id, pods=tuple(pods)))
        return assignments, conflicts

    def _devices(
        self, placement: Placement, slices: "_FreeSlices"
    ) -> tuple[AssignedDevice, ...] | None:
        """The GPUs and slices of a placement; None if no slice is free."""
        inventory = self.inventories[placement.node_id]
        found = []
        for share in placement.devices:
            gpu = inventory.gpus.get(share.index)
            uuid = str(share.index) if gpu is None else gpu.uuid
            if share.mig_profile:
                uuid = slices.take(placement.node_id, share.index, share.mig_profile)
                if not uuid:
                    return None
            found.append(
                AssignedDevice(
                    index=share.index,
                    uuid=uuid,
                    model="" if gpu is None else gpu.model,
                    share_milli=share.share_milli,
                    memory_mib=share.memory_mb,
                    profile=share.mig_profile,
                    gpu_memory_mib=0 if gpu is None else gpu.memory_mib,
                )
            )
        return tuple(found)

    def _decision(
        self,
        state: ClusterState,
        plan: Plan,
        assignments: list[Assignment],
        *,
        with_forecast: bool,
    ) -> Decision:
        """The plan in terms of pods, with a reason for each that waits."""
        assigned = {assignment.job_id for assignment in assignments}
        return Decision(
            assignments=tuple(assignments),
            evictions=tuple(self._evictions(plan)),
            waiting=self._waiting_pods(state, plan, assigned, with_forecast=with_forecast),
            gangs=self.workloads.gangs,
            reservations=plan.reservations,
            quota_shares=tuple(node_shares(state)),
            next_begin_ms=self.workloads.next_begin_ms,
            is_complete=plan.complete,
        )

    def _evictions(self, plan: Plan) -> Iterator[PodEviction]:
        for eviction in plan.evictions:
            preemptor = self._waiting.get(eviction.for_job_id)
            if preemptor is not None and any(
                member.pod.spec.preemption_policy == "Never" for member in preemptor.members
            ):
                continue
            for member in self._running[eviction.allocation_id].members:
                if is_bound(member.pod) and not is_being_deleted(member.pod):
                    yield PodEviction(
                        pod=member.pod,
                        for_job_id=eviction.for_job_id,
                        reason=eviction.ground.value,
                    )

    def _evictions_for(self, reserved: Reserved) -> Iterator[PodEviction]:
        """Pods on GPUs of a reservation that is about to begin, without a right to them."""
        for allocation_id, name in reserved.in_the_way:
            work = self._running.get(allocation_id)
            for member in work.members if work is not None else ():
                if is_bound(member.pod) and not is_being_deleted(member.pod):
                    yield PodEviction(
                        pod=member.pod,
                        for_job_id=f"GpuReservation {name}",
                        reason=PreemptionReason.RESERVATION.value,
                    )

    def _waiting_pods(
        self, state: ClusterState, plan: Plan, assigned: set[str], *, with_forecast: bool
    ) -> dict[Key, WaitingPod]:
        pods = self._objects.pods
        found = {
            key: WaitingPod(pod=pods[key], reason=reason)
            for key, reason in self.workloads.refused.items()
        }
        reasons = Reasons(state, plan)
        positions = _positions(state)
        likely, latest = self._forecasts(state) if with_forecast else ({}, {})
        started = {start.job_id for start in plan.starts}
        nominated = {
            (one.job_id, placement.member): placement.node_id
            for one in plan.reservations
            if one.claim
            for placement in one.placements
        }
        for job_id, work in self._waiting.items():
            if job_id in assigned:
                continue
            number = work.job.number
            if job_id in started:
                lacks_room = True
                reason = (
                    "its pods exclude each other on every place that was tried; relax its host "
                    "ports, anti-affinity or topology spread"
                )
            else:
                found_reason = _reason_of(reasons, number)
                reason, lacks_room = str(found_reason), _lacks_room(found_reason)
            for place, member in enumerate(work.members):
                found[member.pod.key] = WaitingPod(
                    pod=member.pod,
                    reason=reason + self._exclusions(member),
                    lacks_room=lacks_room,
                    nominated=nominated.get((job_id, place), ""),
                    position=positions.get(number),
                    is_first=not place,
                    likely_ms=likely.get(number),
                    latest_ms=latest.get(number),
                )
        return found

    def _exclusions(self, member: Member) -> str:
        """Which rules of the pod exclude how many nodes."""
        excluded = self._allowed_of[member.uid].excluded
        if not excluded:
            return ""
        most = sorted(excluded.items(), key=lambda one: (-one[1], one[0]))[:MOST_TOLD]
        total = len(self.inventories)
        return f"; of {total} nodes: " + ", ".join(f"{count} {why}" for why, count in most)

    def _forecasts(self, state: ClusterState) -> tuple[dict[int, int], dict[int, int]]:
        """Expected starts by job number: likely ones, and if all that is ahead uses its limit.

        A likely start counts with the run times of like pods that have ended. A start that depends
        on the end of a pod of which nothing is known is not told.
        """
        if len(state.queue.entries) > MOST_FORECAST:
            return {}, {}
        run_times = self._memory.run_times
        latest = self._foreseen(state, None, lambda job, _: not job.max_runtime_ms)
        if not len(run_times):
            return latest, latest
        likely = self._foreseen(state, run_times.run_ms, run_times.is_guess)
        for number, at_ms in latest.items():
            likely[number] = min(at_ms, likely.get(number, at_ms))
        return likely, latest

    def _foreseen(
        self, state: ClusterState, run_ms_of: RunTime | None, is_guess: Guess
    ) -> dict[int, int]:
        """Starts by job number that depend on no guess."""
        found = Foresight()
        try:
            foresee(state, self._now_ms, found, run_ms_of=run_ms_of, is_guess=is_guess)
        except Exception:
            # The state is only for this decision; starts that were found are valid.
            log.exception("the forecast failed; the decision goes on without it")
        return {
            number: at_ms for number, at_ms in found.starts.items() if not found.guesses[number]
        }


def _reason_of(reasons: Reasons, number: int) -> Reason:
    """Why a job waits; an error of the engine costs only this answer."""
    try:
        return reasons.of(number)
    except Exception:
        log.exception("explanation failed", job_number=number)
        return Reason(ReasonCode.UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AllowedNodes:
    """The nodes that some pods may have, and how many nodes each rule excludes for them."""

    number: int
    names: set[str]
    excluded: dict[str, int]


class _Room:
    """What is left of one node while its pods are counted."""

    def __init__(self, node: EngineNode) -> None:
        self._node = node.id
        self._cpu_milli = node.cpu_milli
        self._memory_mb = node.memory_mb
        self._shares = {device.index: WHOLE_MILLI for device in node.devices}
        self._gpu_memory = {device.index: device.memory_mb for device in node.devices}
        self._slices = {
            (device.index, profile): count
            for device in node.devices
            for profile, count in device.mig_slices
        }

    def take(self, member: int, request: Request, shares: Iterable[DeviceShare]) -> Placement:
        """A placement of at most what is left."""
        cpu_milli = min(request.cpu_milli, self._cpu_milli)
        memory_mb = min(request.memory_mb, self._memory_mb)
        self._cpu_milli -= cpu_milli
        self._memory_mb -= memory_mb
        held = [held for share in shares if (held := self._take_device(share)) is not None]
        return Placement(member, self._node, tuple(held), cpu_milli, memory_mb)

    def _take_device(self, share: DeviceShare) -> DeviceShare | None:
        """A device counts as far as it is left; one that the node no longer has does not."""
        index = share.index
        if share.mig_profile:
            if not self._slices.get((index, share.mig_profile), 0):
                return None
            self._slices[index, share.mig_profile] -= 1
            return share
        if index not in self._shares or any(place == index for place, _ in self._slices):
            return None
        left, memory_mb = self._shares[index], self._gpu_memory[index]
        if share.share_milli == WHOLE_MILLI:
            if left < WHOLE_MILLI:
                return None
            self._shares[index] = 0
            return DeviceShare(index, WHOLE_MILLI, memory_mb)
        taken = DeviceShare(index, min(share.share_milli, left), min(share.memory_mb, memory_mb))
        self._shares[index] -= taken.share_milli
        self._gpu_memory[index] -= taken.memory_mb
        return taken


class _FreeSlices:
    """The MIG slices that no lease and no earlier start of the plan has."""

    def __init__(
        self,
        inventories: Mapping[str, Inventory],
        leases: DeviceLeases,
        unleased: Iterable[tuple[str, str]],
    ) -> None:
        self._inventories = inventories
        self._taken = {
            (node, holder.uuid)
            for (node, _), holders in leases.by_device.items()
            for holder in holders
        } | set(unleased)

    def take(self, node: str, index: int, profile: str) -> str:
        """The UUID of a free slice; empty if there is none.

        The engine counts slices by profile. A lease may name one by another profile, for instance
        since the GPU was split in another way.
        """
        for one in self._inventories[node].gpus[index].mig_slices:
            if one.profile == profile and (node, one.uuid) not in self._taken:
                self._taken.add((node, one.uuid))
                return one.uuid
        return ""


def _lacks_room(reason: Reason) -> bool:
    """Tell whether more nodes could help; the whole cluster is the root of the quota tree."""
    is_root = reason.code is ReasonCode.QUOTA_NODE and reason.get("node") == WHOLE_CLUSTER
    return reason.code in LACK_OF_ROOM or is_root


def _has_piece(gpu: Gpu, uuid: str) -> bool:
    return gpu.uuid == uuid or any(one.uuid == uuid for one in gpu.mig_slices)


def _share_of(index: int, holder: Holder) -> DeviceShare:
    return DeviceShare(index, holder.share_milli, holder.memory_mib, holder.profile)


def _has_foreign_gpus(pods: Iterable[Pod]) -> bool:
    return any(
        pod.spec.scheduler_name != SCHEDULER_NAME
        and any(
            count and (name == GPU_RESOURCE or name.startswith(MIG_RESOURCE))
            for name, count in pod_requests(pod).items()
        )
        for pod in pods
    )


def _of_others(name: str, number: int, placement: Placement, now_ms: int) -> Running:
    """What other pods hold of a node: it is not preempted, and its end is not expected."""
    job = Job(
        id=f"{OTHER_PODS} on {name}",
        number=OTHERS_FROM + number,
        submit_ms=0,
        tenant=OTHER_PODS,
        preemptible=False,
    )
    return Running(
        job=job,
        allocation=Allocation(
            id=job.id,
            job_id=job.id,
            task=None,
            attempt=1,
            placements=(placement,),
            start_ms=now_ms,
        ),
        expected_end_ms=now_ms + ENDLESS_MS,
    )


def _positions(state: ClusterState) -> dict[int, int]:
    """The place in line of every waiting job, from 1."""
    fair_share = FairShare(state)
    order = sorted(
        state.queue.entries.values(), key=lambda one: (fair_share.order_value(one), one.number)
    )
    return {entry.number: place for place, entry in enumerate(order, 1)}
