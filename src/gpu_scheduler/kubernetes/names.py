"""The names that scheduler, webhook and agent agree on, and that users write in manifests."""

SCHEDULER_NAME = "gpu-scheduler"
"""`spec.schedulerName` of the pods that the scheduler assigns."""
GPU_RESOURCE = "nvidia.com/gpu"
"""The extended resource of whole GPUs; a pod that asks for it needs no GpuClaim."""
MIG_RESOURCE = "nvidia.com/mig-"
"""With the profile behind it: the extended resource of MIG slices, as NVIDIA's plugin names it."""

CLAIM_ANNOTATION = "gpu.scheduling/claim"
"""On a pod: the name of its GpuClaim, in the same namespace."""
OWNER_ANNOTATION = "gpu.scheduling/owner"
"""On a GpuClaim: the controller whose pods use it, such as Deployment/web, if they name none."""

ALLOCATED_ANNOTATION = "gpu.scheduling/allocated"
"""On an assigned pod: the UUIDs of its GPUs or MIG slices, separated by commas, in the form of
NVIDIA_VISIBLE_DEVICES. Indices instead if the node has no GpuNodeStatus. The scheduler writes it
with the Binding."""
INDICES_ANNOTATION = "gpu.scheduling/gpu-indices"
"""On an assigned pod: the indices of the same GPUs on its node, for people."""
ATTEMPT_ANNOTATION = "gpu.scheduling/attempt"
"""On a pod that waits: counts attempts to assign it that were given up. The scheduler changes it
before it releases the leases of such an attempt, so that no late Binding of it can succeed."""

DEVICE_LEASE_LABEL = "gpu.scheduling/device"
"""On the Lease of a GPU; the value is always "true"."""
NODE_ANNOTATION = "gpu.scheduling/node"
"""On the Lease of a GPU: the name of its node."""
INDEX_ANNOTATION = "gpu.scheduling/index"
"""On the Lease of a GPU: its index on the node."""
HOLDERS_ANNOTATION = "gpu.scheduling/holders"
"""On the Lease of a GPU: the pods that hold it or a part of it, as JSON."""

RACK_LABELS = ("gpu.scheduling/rack", "topology.kubernetes.io/rack")
"""Labels of a node that name its rack; the first that exists counts."""


def device_lease_name(node: str, index: int) -> str:
    """The name of the Lease of a GPU, in the namespace of the scheduler."""
    return f"gpu-{node}-{index}"
