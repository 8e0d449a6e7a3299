"""All resources of the group `gpu.scheduling`."""

from typing import Any

from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS
from gpu_scheduler.kubernetes.crds.definition import CustomResource
from gpu_scheduler.kubernetes.crds.node_status import GPU_NODE_STATUSES
from gpu_scheduler.kubernetes.crds.queue import GPU_QUEUES
from gpu_scheduler.kubernetes.crds.reservation import GPU_RESERVATIONS

CUSTOM_RESOURCES: tuple[CustomResource[Any], ...] = (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_QUEUES,
    GPU_RESERVATIONS,
)
