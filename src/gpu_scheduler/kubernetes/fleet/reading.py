"""Reads the objects of a fleet; errors say which right or installation is missing."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.kubernetes.client import errors
from gpu_scheduler.kubernetes.client.client import ApiClient, Selection
from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS
from gpu_scheduler.kubernetes.crds.node_status import GPU_NODE_STATUSES
from gpu_scheduler.kubernetes.crds.queue import GPU_QUEUES
from gpu_scheduler.kubernetes.objects import NODES, PODS, Resource
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects
from gpu_scheduler.model.errors import ClusterError, Forbidden, InvalidRequest, UnknownThing

VIEW_ROLE = "gpu-scheduler-fleet-view"
"""The ClusterRole of the chart with every right that reading a whole fleet needs."""
_RESOURCES: dict[str, Resource[Any]] = {
    "pods": PODS,
    "claims": GPU_CLAIMS,
    "queues": GPU_QUEUES,
    "node_statuses": GPU_NODE_STATUSES,
    "nodes": NODES,
}
JOBS = ("pods", "claims", "queues")
"""What lists of jobs need: it is enough to read one namespace."""
EVERYTHING = tuple(_RESOURCES)


async def read_objects(
    client: ApiClient, fields: tuple[str, ...], *, server: str, namespace: str = ""
) -> Objects:
    """The objects of these fields; those of a namespace, or of all without one.

    A user of one namespace may not list queues: then the jobs show only queues that claims name.
    """
    found: dict[str, Any] = {}
    for field in fields:
        resource = _RESOURCES[field]
        where = namespace if resource.is_namespaced else ""
        try:
            listing = await client.list(resource, Selection(namespace=where))
        except errors.KubernetesError as error:
            if field == "queues" and namespace and isinstance(error, errors.Forbidden):
                continue
            raise explained(error, resource, where, server) from error
        found[field] = {one.key: one for one in listing.items}
    return Objects(**found)


def explained(
    error: errors.KubernetesError, resource: Resource[Any], namespace: str, server: str
) -> ClusterError | Forbidden | InvalidRequest | UnknownThing:
    """What a failed read means for the user, and what to do."""
    place = f"in namespace '{namespace}'" if namespace else "in the whole cluster"
    match error:
        case errors.NotFound():
            return UnknownThing(
                f"the cluster at {server} has no {resource.kind}s, so gpu-scheduler is not "
                "installed there; install charts/gpu-scheduler, or choose another --context"
            )
        case errors.Forbidden():
            narrower = ", or name one namespace by -n" if not namespace else ""
            return Forbidden(
                f"you may not list {resource.plural} {place} (cluster at {server}); an "
                f"administrator can give you the ClusterRole {VIEW_ROLE}"
                + (narrower if resource in (PODS, GPU_CLAIMS) else "")
            )
        case errors.Unauthorized():
            return Forbidden(
                f"the cluster at {server} does not accept your credentials; log in again, or "
                "choose another --context"
            )
        case errors.InvalidConfiguration():
            return InvalidRequest(str(error))
        case _:
            return ClusterError(f"the cluster at {server} could not be read: {error}")
