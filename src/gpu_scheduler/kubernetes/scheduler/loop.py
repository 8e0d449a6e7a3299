"""The loop of the scheduler: caches follow the API server, and each change leads to a cycle.

A cycle reads the caches once, repairs, decides, writes and reports, one after the other. What it
has written is remembered until the caches show it (`_Ahead`), so that the next cycle does not
decide the same again. Reports are handed over and written meanwhile (`ReportWriter`). Only the
leader runs cycles; the others keep their caches warm.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

import structlog
from msgspec import structs

from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.kubernetes.client.client import ApiClient, Selection
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS, GpuClaimStatus
from gpu_scheduler.kubernetes.crds.node_status import GPU_NODE_STATUSES
from gpu_scheduler.kubernetes.crds.queue import GPU_QUEUES
from gpu_scheduler.kubernetes.crds.reservation import GPU_RESERVATIONS, GpuReservationStatus
from gpu_scheduler.kubernetes.dynamic_resources import (
    DEVICE_CLASSES,
    DRIVER,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gpu_scheduler.kubernetes.names import DEVICE_LEASE_LABEL
from gpu_scheduler.kubernetes.objects import (
    CSI_DRIVERS,
    CSI_NODES,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CAPACITIES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
    Lease,
    Object,
    Pod,
    Resource,
)
from gpu_scheduler.kubernetes.reflector import Reflector
from gpu_scheduler.kubernetes.scheduler.decision import (
    AssignedPod,
    Assignment,
    Decision,
    Memory,
    Translation,
    WaitingPod,
)
from gpu_scheduler.kubernetes.scheduler.isolation import (
    Isolation,
    SetAside,
    explained,
    find_offender,
)
from gpu_scheduler.kubernetes.scheduler.objects_view import Key, Objects, is_bound
from gpu_scheduler.kubernetes.scheduler.records import (
    encoded,
    reservation_record,
    run_time_record,
)
from gpu_scheduler.kubernetes.scheduler.repair import Deadlines, Repairs, find_repairs
from gpu_scheduler.kubernetes.scheduler.report_writer import ReportWriter, Write
from gpu_scheduler.kubernetes.scheduler.reporting import (
    TOLD_AGAIN_SECONDS,
    ClaimWrite,
    ConditionWrite,
    QueueWrite,
    ReservationWrite,
    assigned_status,
    claim_writes,
    condition_writes,
    event,
    queue_writes,
    reservation_writes,
    start_sentence,
)
from gpu_scheduler.kubernetes.scheduler.run_times import RunTimes
from gpu_scheduler.kubernetes.scheduler.writer import (
    NotLeader,
    Writer,
    allocation_annotations,
    completion_annotations,
)

log = structlog.get_logger("kube-scheduler")

RESOURCES: dict[str, Resource[Any]] = {
    "nodes": NODES,
    "pods": PODS,
    "claims": GPU_CLAIMS,
    "node_statuses": GPU_NODE_STATUSES,
    "queues": GPU_QUEUES,
    "reservations": GPU_RESERVATIONS,
    "leases": LEASES,
    "namespaces": NAMESPACES,
    "volume_claims": VOLUME_CLAIMS,
    "volumes": VOLUMES,
    "storage_classes": STORAGE_CLASSES,
    "csi_nodes": CSI_NODES,
    "csi_drivers": CSI_DRIVERS,
    "storage_capacities": STORAGE_CAPACITIES,
    "budgets": DISRUPTION_BUDGETS,
}
"""What the scheduler reads, by the field of `Objects`."""
CLAIM_RESOURCES: dict[str, Resource[Any]] = {
    "resource_claims": RESOURCE_CLAIMS,
    "device_classes": DEVICE_CLASSES,
    "resource_slices": RESOURCE_SLICES,
}
"""What it reads as well if it allocates ResourceClaims."""
MOST_TOLD_ASIDE = 10_000
"""So many objects are remembered that an event was written about."""
_KINDS = {**RESOURCES, **CLAIM_RESOURCES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Times of the loop."""

    quiet_seconds: float = 0.02
    """After a change, others are awaited for so long: they often come together."""
    burst_seconds: float = 0.2
    """While changes keep coming, a cycle begins at the latest after so long."""
    idle_seconds: float = 10.0
    """Without any change a cycle runs so often, for deadlines and what was not written before."""
    retold_seconds: float = 10.0
    """A pod gets a new sentence at most so often."""
    forecast_seconds: float = 5.0
    """Expected starts are worked out at most so often."""
    record_seconds: float = 30.0
    """Run times of pods that have ended are written down at most so often."""
    forming_seconds: float = 2.0
    """A pod is told that others of its gang are missing only if they are for so long: a controller
    creates them one after the other, and hundreds of sentences would delay their start."""
    protected_seconds: float = 60.0
    """A pod whose eviction was refused is not evicted for so long."""
    ahead_seconds: float = 60.0
    """A write that the caches do not show after so long is forgotten."""
    deadlines: Deadlines = Deadlines()  # noqa: RUF009 - frozen


@dataclass(slots=True, kw_only=True)
class Counters:
    """What has been done since the start, for metrics."""

    cycles: int = 0
    failed_cycles: int = 0
    bound_pods: int = 0
    failed_assignments: int = 0
    evicted_pods: int = 0
    rollbacks: int = 0
    released_leases: int = 0
    waiting_pods: int = 0
    last_cycle_seconds: float = 0.0
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Objects that decisions are made without, by kind."""


class Scheduler:
    """Follows one cluster and schedules its pods while `is_leader` says so."""

    def __init__(  # noqa: PLR0913 - named, and each with one meaning
        self,
        client: ApiClient,
        *,
        namespace: str,
        identity: str,
        policy: Policy,
        is_leader: Callable[[], bool],
        term: Callable[[], int] = lambda: 0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        settings: LoopSettings = LoopSettings(),  # noqa: B008 - frozen
        serves_claims: bool = True,
    ) -> None:
        """Nothing happens until `run`. Without `serves_claims`, pods with ResourceClaims wait.

        What a cycle has decided is written only in the `term` of the leader in which it began.
        """
        self._client = client
        self._policy = policy
        self._is_leader = is_leader
        self._term = term
        self._cycle_term = 0
        self._now = now
        self._settings = settings
        self._writer = Writer(
            client, namespace=namespace, identity=identity, is_leader=self._may_write, now=now
        )
        self._reports = ReportWriter(self._may_write)
        self._serves_claims = serves_claims
        selections = {
            "leases": Selection(namespace=namespace, labels=f"{DEVICE_LEASE_LABEL}=true"),
            "resource_slices": Selection(fields=f"spec.driver={DRIVER}"),
        }
        self._reflectors: dict[str, Reflector[Any]] = {
            field: Reflector(
                client,
                resource,
                selections.get(field, Selection()),
                random=Random(f"{identity} {field}"),
            )
            for field, resource in {
                **RESOURCES,
                **(CLAIM_RESOURCES if serves_claims else {}),
            }.items()
        }
        self._changed = asyncio.Event()
        self._random = Random(identity)
        self._isolation = Isolation()
        self._told_aside: dict[str, str] = {}
        self._ahead = _Ahead(settings.ahead_seconds)
        self._memory = Memory()
        self._record = reservation_record(client, namespace)
        self._run_record = run_time_record(client, namespace)
        self._run_times = RunTimes()
        self._is_restored = False
        self._recorded = "[]"
        self._recorded_at = float("-inf")
        self._has_new_runs = False
        self._runs_recorded_at = float("-inf")
        self._protected_until: dict[str, float] = {}
        self._incomplete_since_ms: dict[str, int] = {}
        self._forming_since: dict[Key, float] = {}
        self._told_at: dict[str, float] = {}
        self._told_statuses: dict[str, GpuClaimStatus] = {}
        self._told_reservations: dict[str, GpuReservationStatus] = {}
        self._event_reasons: dict[str, str] = {}
        self._event_starts: dict[str, int] = {}
        self._forecast_at = float("-inf")
        self._forecast: dict[Key, tuple[int | None, int | None]] = {}
        self._event_names = (
            hashlib.sha256(f"{identity} {number}".encode()).hexdigest()[:16] for number in count()
        )
        self.counters = Counters()
        for reflector in self._reflectors.values():
            reflector.add_handler(_Waker(self._changed))

    @property
    def is_synced(self) -> bool:
        """Whether all caches have been filled."""
        return all(reflector.is_synced for reflector in self._reflectors.values())

    def wake(self) -> None:
        """Run a cycle soon, for instance because this process leads now."""
        self._changed.set()

    def _may_write(self) -> bool:
        """Whether this process leads, and has led without a break since the cycle began."""
        return self._is_leader() and self._term() == self._cycle_term

    async def run(self) -> None:
        """Follow and schedule until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.run())
            tasks.create_task(self._reports.run())
            for reflector in self._reflectors.values():
                await reflector.wait_until_synced()
            log.info("caches are filled", pods=len(self._reflectors["pods"].objects))
            while True:
                await self._wait_for_change()
                if not self._is_leader():
                    self._is_restored = False  # another leader may write a newer record
                    continue
                try:
                    await self.cycle()
                except NotLeader:
                    log.info("cycle ended; another process leads")
                except Exception:
                    self.counters.failed_cycles += 1
                    log.exception("cycle failed; will retry")
                    await asyncio.sleep(1.0)
                    self._changed.set()

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(self._settings.idle_seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._settings.burst_seconds
        while self._changed.is_set():
            self._changed.clear()
            await asyncio.sleep(self._settings.quiet_seconds)
            if loop.time() >= latest:
                self._changed.clear()

    async def cycle(self) -> None:
        """Repair, decide, write and report once.

        If that fails because of one object, the next cycle leaves the object out.
        """
        loop = asyncio.get_running_loop()
        began, now, term = loop.time(), self._now(), self._term()
        if term != self._cycle_term:
            self._is_restored = False  # another leader may have written a newer record
        self._cycle_term = term
        if not self._is_restored:
            self._memory = Memory(reservations=await self._record.read())
            self._recorded = encoded(self._memory.reservations)
            self._run_times = RunTimes(await self._run_record.read())
            self._is_restored = True
        self._protected_until = {
            uid: until for uid, until in self._protected_until.items() if until > began
        }
        objects, aside = self._isolation.split(
            self._ahead.merged(
                Objects(
                    **{field: dict(one.objects) for field, one in self._reflectors.items()},
                    serves_claims=self._serves_claims,
                ),
                began,
            ),
            {field: one.unreadable for field, one in self._reflectors.items() if one.unreadable},
            began,
        )
        self._tell_aside(aside)
        try:
            await self._cycle(objects, aside, began, now)
        except (NotLeader, KubernetesError):
            raise
        except Exception:
            if not await self._isolate(objects, began, now):
                raise
            log.exception("cycle failed because of one object; going on without it")
            self._changed.set()
        self.counters.cycles += 1
        self.counters.last_cycle_seconds = loop.time() - began

    async def _cycle(
        self, objects: Objects, aside: tuple[SetAside, ...], began: float, now: datetime
    ) -> None:
        now_ms = int(now.timestamp() * 1000)
        memory = replace(
            self._memory,
            unevictable=frozenset(self._protected_until),
            run_times=self._run_times,
        )
        translation = Translation(objects, self._policy, now_ms, memory)
        self._has_new_runs |= self._run_times.learn(translation.workloads.ended)
        self._incomplete_since_ms = self._incomplete_gangs(translation, aside, now_ms)
        repairs = find_repairs(
            objects,
            translation,
            now_ms=now_ms,
            incomplete_since_ms=self._incomplete_since_ms,
            deadlines=self._settings.deadlines,
        )
        unjudged = {one.object.metadata.uid for one in aside}
        kept = tuple(one for one in repairs.releases if one.held.holder.uid not in unjudged)
        await self._repair(replace(repairs, releases=kept))
        is_due = began - self._forecast_at >= self._settings.forecast_seconds
        decision = translation.decide(with_forecast=is_due)
        decision = self._with_forecast(decision, began, is_new=is_due)
        decision = replace(decision, waiting=explained(decision.waiting, aside))
        self._memory = Memory(reservations=decision.reservations, advance=decision.reserved.found)
        assigned = await self._assign(decision, translation.workloads.pods_of_claims)
        await self._evict(decision, began)
        self._report(objects, translation, decision, assigned)
        if not decision.is_complete:
            self._changed.set()
        self.counters.waiting_pods = len(decision.waiting)

    async def _isolate(self, objects: Objects, began: float, now: datetime) -> bool:
        """Find the object because of which a cycle fails; tells whether there is one."""
        now_ms = int(now.timestamp() * 1000)

        def rehearse(view: Objects) -> None:
            """All of a cycle but its writes."""
            translation = Translation(view, self._policy, now_ms, self._memory)
            find_repairs(view, translation, now_ms=now_ms, incomplete_since_ms={})
            decision = translation.decide()
            list(condition_writes(decision.waiting))
            list(claim_writes(view, translation, decision, now))
            list(queue_writes(view, translation, decision, now))
            list(reservation_writes(view, decision, now))

        found = await find_offender(objects, rehearse)
        if found is None:
            self._memory = Memory()  # the only other thing that decisions depend on
            return False
        field, offender, why = found
        self._isolation.add(field, offender, why, began)
        return True

    def _tell_aside(self, aside: tuple[SetAside, ...]) -> None:
        """Say once of each object that decisions are made without it, and why."""
        self.counters.set_aside = dict(Counter(_KINDS[one.field].kind for one in aside))
        for one in aside:
            uid = one.object.metadata.uid
            if self._told_aside.get(uid) == one.why:
                continue
            self._told_aside[uid] = one.why
            resource = _KINDS[one.field]
            message = f"the scheduler decides without this {resource.kind}: {one.why}"
            log.warning(
                "object is set aside",
                kind=resource.kind,
                namespace=one.object.metadata.namespace,
                name=one.object.metadata.name,
                error=one.why,
            )
            self._tell_about(one.object, resource, "SetAside", message, is_warning=True)
        while len(self._told_aside) > MOST_TOLD_ASIDE:
            del self._told_aside[next(iter(self._told_aside))]

    def _incomplete_gangs(
        self, translation: Translation, aside: tuple[SetAside, ...], now_ms: int
    ) -> dict[str, int]:
        """Since when gangs have had too few pods on nodes.

        A gang may only look so in a namespace in which objects are set aside.
        """
        unclear = tuple(f"{one.object.metadata.namespace}/" for one in aside)
        return {
            gang: self._incomplete_since_ms.get(gang, now_ms)
            for gang, state in translation.workloads.gangs.items()
            if state.is_incomplete and not gang.startswith(unclear)
        }

    def _with_forecast(self, decision: Decision, at: float, *, is_new: bool) -> Decision:
        """Keep the expected starts of the last forecast until the next one."""
        if is_new:
            self._forecast_at = at
            self._forecast = {
                key: (one.likely_ms, one.latest_ms) for key, one in decision.waiting.items()
            }
            return decision
        waiting: dict[Key, WaitingPod] = {}
        for key, one in decision.waiting.items():
            likely_ms, latest_ms = self._forecast.get(key, (None, None))
            waiting[key] = replace(one, likely_ms=likely_ms, latest_ms=latest_ms)
        return replace(decision, waiting=waiting)

    # --- writing

    async def _repair(self, repairs: Repairs) -> None:
        at = asyncio.get_running_loop().time()
        for rollback in repairs.rollbacks:
            self.counters.rollbacks += 1
            if await self._writer.roll_back(rollback):
                for held in rollback.held:
                    self._ahead.drop_lease(held.lease)
                for pod in rollback.pods:
                    self._tell(pod, "AssignmentGivenUp", rollback.why, is_warning=True)
        done = await asyncio.gather(*(self._writer.complete(one) for one in repairs.completions))
        for completion, is_done in zip(repairs.completions, done, strict=True):
            if is_done:
                self.counters.bound_pods += 1
                annotations = completion_annotations(completion)
                self._ahead.bind(completion.pod, completion.node, annotations, at)
                self._tell_assigned(
                    completion.pod, completion.node, [held.index for held in completion.held]
                )
        released = await asyncio.gather(*(self._writer.release(one) for one in repairs.releases))
        for release, is_done in zip(repairs.releases, released, strict=True):
            if is_done:
                self.counters.released_leases += 1
                self._ahead.drop_lease(release.held.lease)
        await asyncio.gather(*(self._writer.restore(one) for one in repairs.missing))
        await asyncio.gather(*(self._writer.limit(one) for one in repairs.limits))
        await asyncio.gather(*(self._writer.withdraw(pod) for pod in repairs.stale_claims))
        for gang in repairs.half_gangs:
            log.warning("gang has too few pods; evicting it", gang=gang.gang, pods=len(gang.pods))
            evictions = await self._writer.evict(gang.pods)
            self.counters.evicted_pods += len(evictions.evicted)
            why = "too few pods of its gang were on nodes for too long"
            for pod in (one for one in gang.pods if one.metadata.uid in evictions.evicted):
                self._tell(pod, "GangIncomplete", why, is_warning=True)

    async def _assign(
        self, decision: Decision, pods_of: Mapping[Key, list[Pod]]
    ) -> list[AssignedPod]:
        results = await asyncio.gather(
            *(self._carry_out(one, pods_of) for one in decision.assignments)
        )
        if any(
            len(pods) < len(assignment.pods)
            for assignment, pods in zip(decision.assignments, results, strict=True)
        ):
            # Should another scheduler be at work, the two must not fail each other for ever.
            asyncio.get_running_loop().call_later(self._random.uniform(0.1, 1.0), self.wake)
        return [one for pods in results for one in pods]

    async def _carry_out(
        self, assignment: Assignment, pods_of: Mapping[Key, list[Pod]]
    ) -> list[AssignedPod]:
        """Lease and bind; then tell so at once, while others are leased and bound still."""
        at = asyncio.get_running_loop().time()
        try:
            leases, pods = await self._writer.assign(assignment)
        except NotLeader:
            raise
        except Exception:
            log.exception("assignment failed", job=assignment.job_id)
            leases, pods = [], []
        self.counters.bound_pods += len(pods)
        self.counters.failed_assignments += len(pods) < len(assignment.pods)
        for lease in leases:
            self._ahead.add_lease(lease, at)
        for one in pods:
            self._ahead.bind(one.pod, one.node, allocation_annotations(one), at)
            self._tell_assigned(one.pod, one.node, [device.index for device in one.devices])
            claim = one.member.claim
            if claim is not None and len(pods_of.get(claim.key, ())) == 1:
                self._tell_claim(
                    ClaimWrite(claim=claim, status=assigned_status(claim, one, self._now())), at
                )
        return pods

    async def _evict(self, decision: Decision, at: float) -> None:
        if not decision.evictions:
            return
        done = await self._writer.evict(one.pod for one in decision.evictions)
        for uid in done.blocked:
            self._protected_until[uid] = at + self._settings.protected_seconds
        if done.blocked:
            self._changed.set()
        for one in decision.evictions:
            if one.pod.metadata.uid in done.evicted:
                self.counters.evicted_pods += 1
                why = f"evicted for {one.for_job_id} ({one.reason})"
                self._tell(one.pod, "Preempted", why, is_warning=True)

    # --- reporting

    def _report(
        self,
        objects: Objects,
        translation: Translation,
        decision: Decision,
        assigned: list[AssignedPod],
    ) -> None:
        """Tell users what is new; a report that fails is repeated by a later cycle."""
        at, now = asyncio.get_running_loop().time(), self._now()
        early = self._told_too_early(translation.workloads.forming, at)
        due = {
            key: one
            for key, one in decision.waiting.items()
            if key not in early and self._may_tell(one.pod, at)
        }
        for condition in condition_writes(due):
            uid = condition.pod.metadata.uid
            self._told_at[uid] = at
            self._reports.put_status(uid, self._condition_write(condition, now))
            if self._event_reasons.get(uid) != condition.reason:
                self._event_reasons[uid] = condition.reason
                self._tell(condition.pod, "FailedScheduling", condition.reason, is_warning=True)
        self._tell_starts(decision)
        self._record_reservations(decision, at)
        self._record_runs(at)
        fresh = {one.pod.metadata.uid for one in assigned}
        pods_of = translation.workloads.pods_of_claims
        for write in claim_writes(objects, translation, decision, now):
            key = write.claim.key
            if any(pod.metadata.uid in fresh for pod in pods_of.get(key, ())):
                continue  # the caches show the pod soon, and then the whole status is known
            uid = write.claim.metadata.uid
            told = self._told_statuses.get(uid, write.claim.status)
            if write.status.phase is told.phase and not self._may_tell_claim(uid, at):
                continue
            self._tell_claim(write, at)
        for change in queue_writes(objects, translation, decision, now):
            uid = change.queue.metadata.uid
            if self._may_tell_claim(uid, at):
                self._told_at[uid] = at
                self._reports.put_status(uid, self._queue_write(change))
        for kept in reservation_writes(objects, decision, now):
            # At once: the next leader knows of the GPUs only by this status.
            uid = kept.reservation.metadata.uid
            if self._told_reservations.get(uid) != kept.status or self._may_tell_claim(uid, at):
                self._told_reservations[uid] = kept.status
                self._told_at[uid] = at
                self._reports.put_status(uid, self._reservation_write(kept))
        known = {
            one.metadata.uid
            for kind in (objects.pods, objects.claims, objects.queues, objects.reservations)
            for one in kind.values()
        }
        self._told_at = {uid: told for uid, told in self._told_at.items() if uid in known}
        self._told_statuses = {
            uid: status for uid, status in self._told_statuses.items() if uid in known
        }
        self._told_reservations = {
            uid: status for uid, status in self._told_reservations.items() if uid in known
        }
        self._event_reasons = {
            uid: reason for uid, reason in self._event_reasons.items() if uid in known
        }
        self._event_starts = {
            uid: start_ms for uid, start_ms in self._event_starts.items() if uid in known
        }

    def _told_too_early(self, forming: frozenset[Key], at: float) -> set[Key]:
        """The pods of gangs whose other pods may still be on their way; a later cycle tells."""
        self._forming_since = {key: self._forming_since.get(key, at) for key in forming}
        seconds = self._settings.forming_seconds
        early = {key for key, since in self._forming_since.items() if at - since < seconds}
        if early:
            asyncio.get_running_loop().call_later(seconds, self.wake)
        return early

    def _record_reservations(self, decision: Decision, at: float) -> None:
        """Write down the reservations of blocked jobs if they have changed, now and then."""
        text = encoded(decision.reservations)
        if text != self._recorded and at - self._recorded_at >= self._settings.retold_seconds:
            self._recorded, self._recorded_at = text, at
            self._reports.put_status(self._record.name, lambda: self._record.write(text))

    def _record_runs(self, at: float) -> None:
        """Write down how long pods ran if some have ended, now and then."""
        seconds = self._settings.record_seconds
        if self._has_new_runs and at - self._runs_recorded_at >= seconds:
            self._has_new_runs, self._runs_recorded_at = False, at
            text = encoded(self._run_times.newest_first())
            self._reports.put_status(self._run_record.name, lambda: self._run_record.write(text))

    def _tell_starts(self, decision: Decision) -> None:
        """Write an event when the expected start of a job is known, or has moved far."""
        for _, one in sorted(decision.waiting.items()):
            uid, start_ms = one.pod.metadata.uid, one.likely_ms
            if start_ms is None or not one.is_first:
                continue
            told_ms = self._event_starts.get(uid)
            if told_ms is None or abs(start_ms - told_ms) > TOLD_AGAIN_SECONDS * 1000:
                self._event_starts[uid] = start_ms
                self._tell(one.pod, "ExpectedStart", start_sentence(one))

    def _may_tell(self, pod: Pod, at: float) -> bool:
        return self._may_tell_claim(pod.metadata.uid, at)

    def _may_tell_claim(self, uid: str, at: float) -> bool:
        return at - self._told_at.get(uid, float("-inf")) >= self._settings.retold_seconds

    def _condition_write(self, condition: ConditionWrite, now: datetime) -> Write:
        namespace, name = condition.pod.key
        changes = condition.changes(now)
        return lambda: self._client.patch(PODS, name, changes, namespace, subresource="status")

    def _tell_claim(self, write: ClaimWrite, at: float) -> None:
        """Write the status of a claim."""
        uid, (namespace, name) = write.claim.metadata.uid, write.claim.key
        changes = write.changes()
        self._told_at[uid] = at
        self._told_statuses[uid] = write.status
        self._reports.put_status(
            uid,
            lambda: self._client.patch(GPU_CLAIMS, name, changes, namespace, subresource="status"),
        )

    def _queue_write(self, write: QueueWrite) -> Write:
        name, changes = write.queue.metadata.name, write.changes()
        return lambda: self._client.patch(GPU_QUEUES, name, changes, subresource="status")

    def _reservation_write(self, write: ReservationWrite) -> Write:
        name, changes = write.reservation.metadata.name, write.changes()
        return lambda: self._client.patch(GPU_RESERVATIONS, name, changes, subresource="status")

    def _tell_assigned(self, pod: Pod, node: str, indices: Iterable[int]) -> None:
        gpus = ",".join(str(index) for index in sorted(set(indices)))
        where = f"GPU {gpus} of node {node}" if gpus else f"node {node}"
        self._tell(pod, "Scheduled", f"assigned to {where}")

    def _tell(self, pod: Pod, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an event about a pod."""
        self._tell_about(pod, PODS, reason, message, is_warning=is_warning)

    def _tell_about(
        self, one: Object, resource: Resource[Any], reason: str, message: str, *, is_warning: bool
    ) -> None:
        name = f"{one.metadata.name[:200]}.{next(self._event_names)}"
        manifest = event(
            one,
            resource,
            reason=reason,
            message=message,
            is_warning=is_warning,
            name=name,
            now=self._now(),
        )
        self._reports.put_event(lambda: self._client.create(EVENTS, manifest))


class _Waker:
    """Hears of every change of a cache."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed

    def on_added(self, _new: Any, /) -> None:
        self._changed.set()

    def on_updated(self, _old: Any, _new: Any, /) -> None:
        self._changed.set()

    def on_deleted(self, _last: Any, /) -> None:
        self._changed.set()


class _Ahead:
    """Own writes that the caches do not show yet."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._pods: dict[Key, tuple[Pod, float]] = {}
        self._leases: dict[Key, tuple[Lease, float]] = {}

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], at: float) -> None:
        """A pod is bound from now on."""
        told = {**pod.metadata.annotations, **annotations}
        self._pods[pod.key] = (
            structs.replace(
                pod,
                metadata=structs.replace(pod.metadata, annotations=told),
                spec=structs.replace(pod.spec, node_name=node),
            ),
            at,
        )

    def add_lease(self, lease: Lease, at: float) -> None:
        """A lease exists from now on; assignments that share a GPU may tell out of order."""
        known = self._leases.get(lease.key)
        if known is None or _version(known[0]) < _version(lease):
            self._leases[lease.key] = (lease, at)

    def drop_lease(self, lease: Lease) -> None:
        """A lease was released or changed."""
        self._leases.pop(lease.key, None)

    def merged(self, cached: Objects, at: float) -> Objects:
        """The cached objects with the own writes that are newer; those that are old are dropped."""
        pods, leases = dict(cached.pods), dict(cached.leases)
        for key, (pod, since) in list(self._pods.items()):
            found = pods.get(key)
            is_shown = found is None or is_bound(found) or found.metadata.uid != pod.metadata.uid
            if is_shown or at - since > self._longest_seconds:
                del self._pods[key]
            else:
                pods[key] = pod
        for key, (lease, since) in list(self._leases.items()):
            shown = leases.get(key)
            is_newer = shown is not None and _version(shown) >= _version(lease)
            if is_newer or at - since > self._longest_seconds:
                del self._leases[key]
            else:
                leases[key] = lease
        return replace(cached, pods=pods, leases=leases)


def _version(lease: Lease) -> int:
    text = lease.metadata.resource_version
    return int(text) if text.isdecimal() else 0
