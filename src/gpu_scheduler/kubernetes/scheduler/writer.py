"""Carries out decisions and repairs, write by write, in the order that keeps every promise.

1. The leases of all GPUs of an assignment. If one cannot be had, the others are released, and no
   pod was touched.
2. Volumes that the node decides: the node is named in their claims; the pod is bound later.
3. The devices of ResourceClaims, at the version of the claim that was read (`dra.allocator`).
4. Bindings, each for one uid and one version of the pod. If the pod has changed since, it is read
   again: it is still ours to bind as long as its attempt is the same.

To give an assignment up, the attempt of its pods is changed first; from then on no Binding of it
can succeed, also none of an old leader that was frozen. Only then are its leases released.

Every write is checked by the API server (uid, version, or the name of a lease), so two schedulers
at once cost time and never give a GPU twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

import structlog
from msgspec.structs import replace

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    EvictionBlocked,
    KubernetesError,
    NotFound,
    OutcomeUnknown,
)
from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    ATTEMPT_ANNOTATION,
    INDICES_ANNOTATION,
    device_lease_name,
)
from gpu_scheduler.kubernetes.objects import LEASES, PODS, VOLUME_CLAIMS, Lease, Pod
from gpu_scheduler.kubernetes.scheduler.decision import AssignedPod, Assignment, attempt_of
from gpu_scheduler.kubernetes.scheduler.devices import (
    Holder,
    lease_annotations,
    lease_device,
    lease_holders,
    lease_manifest,
)
from gpu_scheduler.kubernetes.scheduler.dra.allocator import ClaimAllocator
from gpu_scheduler.kubernetes.scheduler.objects_view import is_bound
from gpu_scheduler.kubernetes.scheduler.repair import (
    Completion,
    Limit,
    Missing,
    Release,
    Rollback,
)
from gpu_scheduler.kubernetes.scheduler.volumes import SELECTED_NODE
from gpu_scheduler.model.request import WHOLE_MILLI

log = structlog.get_logger("kube-scheduler")

AT_ONCE = 16
"""So many requests are under way at once."""
ASSIGNMENTS_AT_ONCE = 16
"""So many assignments are carried out at once; the first ones are bound before others begin."""
MOST_TRIES = 5
"""So often a write is tried again because the object has changed."""


class NotLeader(Exception):
    """This process does not lead any more, so it must not write."""


class LeaseTaken(Exception):
    """A GPU was given to another pod meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """The uids of pods that were evicted, and of those that a disruption budget protects now."""

    evicted: frozenset[str]
    blocked: frozenset[str]


class Writer:
    """The only part of the scheduler that changes leases and pods."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        identity: str,
        is_leader: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Leases are kept in `namespace`. Before each write, `is_leader` is asked.

        The `identity` differs for each process: with it, each assignment gets a name of its own, so
        that a scheduler never takes the leases of another one for its own.
        """
        self._starts = (f"{identity}-{number}" for number in count(1))
        self._client = client
        self._namespace = namespace
        self._is_leader = is_leader
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._turns = asyncio.Semaphore(ASSIGNMENTS_AT_ONCE)
        self._claims = ClaimAllocator(client, self._check_leader)

    # --- assignments

    async def assign(self, assignment: Assignment) -> tuple[list[Lease], list[AssignedPod]]:
        """Lease all GPUs of an assignment, then bind its pods; returns what was achieved.

        If GPUs are taken, nothing remains of the attempt. If anything else fails, the leases
        remain, and the repair decides what becomes of them.
        """
        async with self._turns:
            return await self._assign(assignment)

    async def _assign(self, assignment: Assignment) -> tuple[list[Lease], list[AssignedPod]]:
        start, since_ms = next(self._starts), int(self._now().timestamp() * 1000)
        wanted: dict[tuple[str, int], list[Holder]] = {}
        memory_mib: dict[tuple[str, int], int] = {}
        for one in assignment.pods:
            for device in one.devices:
                holders = wanted.setdefault((one.node, device.index), [])
                holders.append(assignment.holder(one, device, start, since_ms))
                memory_mib[one.node, device.index] = device.gpu_memory_mib
        results = await self._all(
            self._lease(node, index, holders, memory_mib[node, index])
            for (node, index), holders in wanted.items()
        )
        leases = [one for one in results if isinstance(one, Lease)]
        failures = [one for one in results if not isinstance(one, Lease)]
        if failures and all(isinstance(one, LeaseTaken) for one in failures):
            await self._all(
                self._remove_holders(
                    lease, {one.pod.metadata.uid for one in assignment.pods}, start
                )
                for lease in leases
            )
            log.info("GPUs were taken meanwhile", job=assignment.job_id)
            return [], []
        if failures:
            # A lease may exist although its creation failed, and so another scheduler may find all
            # leases and bind the pods. The repair gives the assignment up, behind a fence.
            return leases, []
        if any(one.unbound for one in assignment.pods):
            await self._all(
                self._select_node(claim.metadata.namespace, claim.metadata.name, one.node)
                for one in assignment.pods
                for claim in one.unbound
            )
            return leases, []
        allocated = await self._all(
            self._claims.allocate(one.pod, one.allocations)
            for one in assignment.pods
            if one.allocations
        )
        if any(result is not True for result in allocated):
            return leases, []
        bound = await self._all(
            self._bind(one.pod, one.node, allocation_annotations(one)) for one in assignment.pods
        )
        done = [one for one, result in zip(assignment.pods, bound, strict=True) if result is True]
        return leases, done

    async def complete(self, completion: Completion) -> bool:
        """Bind a pod that has all its leases; tells whether it is bound now."""
        (result,) = await self._all([self._complete(completion)])
        return result is True

    async def _complete(self, completion: Completion) -> bool:
        if not await self._claims.allocate(completion.pod, completion.allocations):
            return False
        annotations = completion_annotations(completion)
        return await self._bind(completion.pod, completion.node, annotations)

    async def _lease(
        self, node: str, index: int, holders: list[Holder], memory_mib: int = 0
    ) -> Lease:
        """Create the lease of a GPU; or join it, if only parts of the GPU are taken.

        `memory_mib` is all memory of the GPU, if it is known.
        """
        manifest = lease_manifest(self._namespace, node, index, holders, self._now())
        for _ in range(MOST_TRIES):
            self._check_leader()
            try:
                return await self._client.create(LEASES, manifest)
            except (AlreadyExists, OutcomeUnknown):
                pass
            with suppress(NotFound, Conflict, OutcomeUnknown):
                lease = await self._client.get(
                    LEASES, device_lease_name(node, index), self._namespace
                )
                return await self._join(lease, node, index, holders, memory_mib)
        raise OutcomeUnknown(f"the lease of GPU {index} of node {node} changes too often")

    async def _join(
        self, lease: Lease, node: str, index: int, holders: list[Holder], memory_mib: int
    ) -> Lease:
        """Add parts of a GPU to its lease, at the version that was read."""
        found = lease_holders(lease)
        if found is not None and all(_is_among(holder, found) for holder in holders):
            return lease  # an earlier try had succeeded, and its answer was lost
        if found is None or not _fits(found, holders, memory_mib):
            raise LeaseTaken(f"GPU {index} of node {node} is held by {lease.spec.holder_identity}")
        self._check_leader()
        return await self._replace(lease, node, index, (*found, *holders))

    async def _replace(
        self, lease: Lease, node: str, index: int, holders: tuple[Holder, ...]
    ) -> Lease:
        annotations = {**lease.metadata.annotations, **lease_annotations(node, index, holders)}
        return await self._client.replace(
            LEASES, replace(lease, metadata=replace(lease.metadata, annotations=annotations))
        )

    async def _select_node(self, namespace: str, claim: str, node: str) -> bool:
        self._check_leader()
        changes = {"metadata": {"annotations": {SELECTED_NODE: node}}}
        await self._client.patch(VOLUME_CLAIMS, claim, changes, namespace)
        return True

    async def _bind(self, pod: Pod, node: str, annotations: dict[str, str]) -> bool:
        """Bind one pod. It may have changed since it was read, but not its attempt."""
        namespace, name = pod.key
        attempt, version = attempt_of(pod), pod.metadata.resource_version
        for _ in range(MOST_TRIES):
            self._check_leader()
            try:
                await self._client.bind(
                    name,
                    namespace,
                    uid=pod.metadata.uid,
                    node=node,
                    annotations=annotations,
                    resource_version=version,
                )
            except Conflict:
                found = await self._client.get(PODS, name, namespace)
                if found.metadata.uid != pod.metadata.uid:
                    return False
                if is_bound(found):
                    told = found.metadata.annotations
                    return found.spec.node_name == node and annotations.items() <= told.items()
                is_ending = found.metadata.deletion_timestamp is not None
                if is_ending or found.spec.scheduling_gates or attempt_of(found) != attempt:
                    return False
                version = found.metadata.resource_version
            else:
                return True
        return False

    # --- repairs

    async def release(self, release: Release) -> bool:
        """Release a GPU that no pod uses."""
        held = release.held
        if release.is_gone:
            with suppress(NotFound):
                found = await self._client.get(PODS, held.holder.pod, held.holder.namespace)
                if found.metadata.uid == held.holder.uid:
                    return False  # the cache was behind
        (result,) = await self._all(
            [self._remove_holders(held.lease, {held.holder.uid}, held.holder.start)]
        )
        return result is True

    async def roll_back(self, rollback: Rollback) -> bool:
        """Give up an assignment: evict what is bound, forbid late Bindings, release the GPUs."""
        evicted = await self._all(self._evict(pod) for pod in rollback.evicted)
        if any(result is not True for result in evicted):
            return False  # the leases remain as the note that this is to be done
        fenced = await self._all(self._withdraw(pod) for pod in rollback.pods)
        released = {
            pod.metadata.uid
            for pod, result in zip(rollback.pods, fenced, strict=True)
            if result is True
        }
        await self._all(
            self._remove_holders(held.lease, {held.holder.uid}, held.holder.start)
            for held in rollback.held
            if held.holder.uid in released
        )
        log.info("assignment given up", pods=len(rollback.pods), why=rollback.why)
        return True

    async def withdraw(self, pod: Pod) -> bool:
        """Forbid late Bindings of a pod that waits, and take back the devices of its claims."""
        (result,) = await self._all([self._withdraw(pod)])
        return result is True

    async def _withdraw(self, pod: Pod) -> bool:
        return await self._fence(pod) and await self._claims.take_back(pod)

    async def restore(self, missing: Missing) -> bool:
        """Write the lease of a GPU that a bound pod has."""
        (result,) = await self._all([self._lease(missing.node, missing.index, [missing.holder])])
        return isinstance(result, Lease)

    async def limit(self, limit: Limit) -> bool:
        """Tell a pod the time limit of its claim."""
        (result,) = await self._all([self._limit(limit)])
        return result is True

    async def _limit(self, limit: Limit) -> bool:
        self._check_leader()
        namespace, name = limit.pod.key
        changes = {
            "metadata": {"uid": limit.pod.metadata.uid},
            "spec": {"activeDeadlineSeconds": limit.seconds},
        }
        with suppress(NotFound, Conflict):
            await self._client.patch(PODS, name, changes, namespace)
        return True

    async def evict(self, pods: Iterable[Pod]) -> Evictions:
        """Evict pods, those that are still as the decision saw them."""
        wanted = list(pods)
        results = await self._all(self._evict(pod) for pod in wanted)
        pairs = list(zip(wanted, results, strict=True))
        return Evictions(
            evicted=frozenset(pod.metadata.uid for pod, result in pairs if result is True),
            blocked=frozenset(
                pod.metadata.uid for pod, result in pairs if isinstance(result, EvictionBlocked)
            ),
        )

    async def _evict(self, pod: Pod) -> bool:
        """Evict a pod at the version that was seen: one that has ended since keeps its result."""
        self._check_leader()
        namespace, name = pod.key
        meta = pod.metadata
        try:
            await self._client.evict(
                name, namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except NotFound:
            return True
        except Conflict:
            log.info("pod has changed; not evicted", pod=name, namespace=namespace)
            return False
        return True

    async def _fence(self, pod: Pod) -> bool:
        """Change the attempt of a pod; tells whether it can no longer be bound by the old one.

        Only at the version that was seen: a scheduler that is behind would otherwise set an attempt
        that was given up before, and what was bound to it could be bound after all.
        """
        self._check_leader()
        namespace, name = pod.key
        attempt = attempt_of(pod)
        following = str(int(attempt) + 1) if attempt.isdecimal() else "1"
        changes = {
            "metadata": {
                "uid": pod.metadata.uid,
                "resourceVersion": pod.metadata.resource_version,
                "annotations": {ATTEMPT_ANNOTATION: following},
            }
        }
        try:
            found = await self._client.patch(PODS, name, changes, namespace)
        except NotFound:
            return True
        except Conflict:
            return False  # the next cycle judges the pod as it is then
        return not is_bound(found)

    async def _remove_holders(self, lease: Lease, uids: set[str], start: str) -> bool:
        """Take pods of one assignment off a lease; the last one deletes it.

        A later assignment of the same pod keeps its lease: its Binding may be under way.
        """
        for _ in range(MOST_TRIES):
            self._check_leader()
            place, holders = lease_device(lease), lease_holders(lease)
            if place is None or holders is None:
                return False
            left = tuple(
                holder for holder in holders if holder.uid not in uids or holder.start != start
            )
            if left == holders:
                return True
            try:
                if left:
                    await self._replace(lease, *place, left)
                else:
                    await self._client.delete(
                        LEASES,
                        lease.metadata.name,
                        lease.metadata.namespace,
                        uid=lease.metadata.uid,
                        resource_version=lease.metadata.resource_version,
                    )
            except NotFound:
                return True
            except Conflict:
                try:
                    lease = await self._client.get(
                        LEASES, lease.metadata.name, lease.metadata.namespace
                    )
                except NotFound:
                    return True
            else:
                return True
        return False

    # --- requests

    def _check_leader(self) -> None:
        if not self._is_leader():
            raise NotLeader

    async def _all(
        self, writes: Iterable[Awaitable[Lease | bool]]
    ) -> list[Lease | bool | Exception]:
        """Do several writes, some at once; one that fails does not stop the others."""

        async def one(write: Awaitable[Lease | bool]) -> Lease | bool | Exception:
            async with self._slots:
                try:
                    return await write
                except EvictionBlocked as error:
                    return error
                except (KubernetesError, LeaseTaken, NotLeader) as error:
                    log.warning("write failed", error=str(error) or type(error).__name__)
                    return error
                except Exception as error:
                    log.exception("write failed")  # it must not end the writes of other pods
                    return error

        return list(await asyncio.gather(*(one(write) for write in writes)))


def _is_among(holder: Holder, found: tuple[Holder, ...]) -> bool:
    """Tell whether a lease names a holder; one that is restored has no start of its own."""
    if holder.start:
        return holder in found
    return any(
        one.uid == holder.uid and (one.uuid == holder.uuid or not holder.profile) for one in found
    )


def _fits(found: tuple[Holder, ...], added: list[Holder], memory_mib: int) -> bool:
    """Tell whether parts of a GPU go beside those that are taken."""
    every = [*found, *added]
    slices = [holder.uuid for holder in every if holder.profile]
    if slices:
        return len(slices) == len(every) and len(set(slices)) == len(slices)
    if any(holder.share_milli == WHOLE_MILLI for holder in every):
        return len(every) == 1
    if memory_mib and sum(holder.memory_mib for holder in every) > memory_mib:
        return False
    return sum(holder.share_milli for holder in every) <= WHOLE_MILLI


def allocation_annotations(one: AssignedPod) -> dict[str, str]:
    """What a Binding tells the pod about its GPUs."""
    if not one.devices:
        return {}
    return {
        ALLOCATED_ANNOTATION: ",".join(dict.fromkeys(device.uuid for device in one.devices)),
        INDICES_ANNOTATION: ",".join(dict.fromkeys(str(device.index) for device in one.devices)),
    }


def completion_annotations(completion: Completion) -> dict[str, str]:
    """The same for a pod whose leases are all that is left of the decision."""
    held = sorted(completion.held, key=lambda one: (one.index, one.holder.uuid))
    return {
        ALLOCATED_ANNOTATION: ",".join(one.holder.uuid or str(one.index) for one in held),
        INDICES_ANNOTATION: ",".join(dict.fromkeys(str(one.index) for one in held)),
    }
