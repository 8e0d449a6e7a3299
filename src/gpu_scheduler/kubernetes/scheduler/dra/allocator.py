"""Writes the devices of a pod into its ResourceClaims, and takes them back.

A claim is allocated after the leases and before the Binding. Nothing in Kubernetes refuses to give
one device to two claims, so the leases do. An allocation is only ever written into a claim that has
none, at the version that was read, and taken back only after the pod was fenced (its attempt
changed). So a Binding of an attempt that counts always finds the devices of its own leases, also if
a frozen leader writes late: its allocation then is in the claim of a pod that waits, and is taken
back.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    OutcomeUnknown,
)
from gpu_scheduler.kubernetes.dynamic_resources import (
    DRIVER,
    IN_USE_FINALIZER,
    RESOURCE_CLAIMS,
    ResourceClaim,
)
from gpu_scheduler.kubernetes.objects import Pod
from gpu_scheduler.kubernetes.scheduler.dra.needs import ClaimAllocation, claim_names

MOST_TRIES = 5
"""So often a write is tried again because the claim has changed."""


class ClaimAllocator:
    """The only part of the scheduler that writes ResourceClaims."""

    def __init__(self, client: ApiClient, check_leader: Callable[[], None]) -> None:
        """`check_leader` raises if this process may not write any more; it is asked each time."""
        self._client = client
        self._check_leader = check_leader

    async def allocate(self, pod: Pod, allocations: Iterable[ClaimAllocation]) -> bool:
        """Give all claims of a pod their devices; tells whether they all have exactly these."""
        for one in allocations:
            if not await self._allocate(pod, one):
                return False
        return True

    async def _allocate(self, pod: Pod, wanted: ClaimAllocation) -> bool:
        for _ in range(MOST_TRIES):
            self._check_leader()
            try:
                claim = await self._found_or_made(pod, wanted)
                if claim is None or not _may_have(pod, claim, wanted):
                    return False
                if claim.status.allocation is not None:
                    return _has(pod, claim, wanted)
                if IN_USE_FINALIZER not in claim.metadata.finalizers:
                    self._check_leader()
                    finalizers = [*claim.metadata.finalizers, IN_USE_FINALIZER]
                    claim = await self._patch(claim, {"metadata": {"finalizers": finalizers}})
                self._check_leader()
                status = {"status": _status(pod, wanted)}
                await self._patch(claim, status, subresource="status")
            except (Conflict, NotFound, OutcomeUnknown):
                continue
            return True
        return False

    async def _found_or_made(self, pod: Pod, wanted: ClaimAllocation) -> ResourceClaim | None:
        name, namespace = wanted.claim.name, wanted.claim.namespace
        try:
            return await self._client.get(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            if not wanted.claim.is_made:
                return None
        try:
            return await self._client.create(RESOURCE_CLAIMS, _manifest(pod, wanted))
        except AlreadyExists:
            return await self._client.get(RESOURCE_CLAIMS, name, namespace)

    async def take_back(self, pod: Pod) -> bool:
        """Clear the allocations that are for a pod which was fenced; tells whether none is left."""
        for name in claim_names(pod):
            if not await self._take_back(pod, name):
                return False
        return True

    async def _take_back(self, pod: Pod, name: str) -> bool:
        for _ in range(MOST_TRIES):
            self._check_leader()
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, name, pod.metadata.namespace)
                if claim.status.allocation is None or not claim.is_reserved_for(pod.metadata.uid):
                    return True
                self._check_leader()
                nothing = {"allocation": None, "reservedFor": None}
                await self._patch(claim, {"status": nothing}, subresource="status")
            except NotFound:
                return True
            except (Conflict, OutcomeUnknown):
                continue
            return True
        return False

    async def _patch(
        self, claim: ResourceClaim, changes: Mapping[str, Any], *, subresource: str = ""
    ) -> ResourceClaim:
        """Change a claim at the version that was read."""
        version = {
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        }
        metadata = {**changes.get("metadata", {}), **version}
        return await self._client.patch(
            RESOURCE_CLAIMS,
            claim.metadata.name,
            {**changes, "metadata": metadata},
            claim.metadata.namespace,
            subresource=subresource,
        )


def _may_have(pod: Pod, claim: ResourceClaim, wanted: ClaimAllocation) -> bool:
    """Tell whether a claim is still the one of the decision, and free for the pod."""
    if claim.metadata.deletion_timestamp is not None:
        return False
    if wanted.claim.uid and claim.metadata.uid != wanted.claim.uid:
        return False
    owners = {one.uid for one in claim.metadata.owner_references if one.kind == "Pod"}
    if wanted.claim.is_made and pod.metadata.uid not in owners:
        return False
    return all(one.uid == pod.metadata.uid for one in claim.status.reserved_for)


def _has(pod: Pod, claim: ResourceClaim, wanted: ClaimAllocation) -> bool:
    return claim.is_reserved_for(pod.metadata.uid) and claim.our_devices == wanted.results


def _status(pod: Pod, wanted: ClaimAllocation) -> dict[str, Any]:
    node = {"key": "metadata.name", "operator": "In", "values": [wanted.node]}
    return {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": one.request,
                        "driver": DRIVER,
                        "pool": one.pool,
                        "device": one.device,
                    }
                    for one in wanted.results
                ]
            },
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}],
    }


def _manifest(pod: Pod, wanted: ClaimAllocation) -> dict[str, Any]:
    """The claim of a pod with a GpuClaim; Kubernetes deletes it after the pod."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.metadata.name,
        "uid": pod.metadata.uid,
        "controller": True,
    }
    requests = [
        {
            "name": name,
            "exactly": {
                "deviceClassName": DRIVER,
                "allocationMode": "ExactCount",
                "count": count,
            },
        }
        for name, count in wanted.claim.parts
    ]
    return {
        "metadata": {
            "name": wanted.claim.name,
            "namespace": wanted.claim.namespace,
            "ownerReferences": [owner],
            "finalizers": [IN_USE_FINALIZER],
        },
        "spec": {"devices": {"requests": requests}},
    }
