"""Dynamic resource allocation (DRA): objects of `resource.k8s.io/v1`, and names of our driver.

The agent offers the GPUs of its node in a ResourceSlice: the pool has the name of the node, a
device the lower-case UUID of its GPU or MIG slice. The scheduler allocates devices by these names
in the status of a ResourceClaim, and the agent of the node gives exactly these to the containers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_scheduler.kubernetes.objects import Object, Resource, Value

DRIVER = "gpu.scheduling"
"""The name of the driver, and of the DeviceClass that selects its devices."""
POD_CLAIM = "gpu-scheduler"
"""What a pod calls the ResourceClaim that the webhook has added for its GpuClaim. The scheduler
makes this claim when it assigns the pod."""
IN_USE_FINALIZER = "resource.kubernetes.io/delete-protection"
"""On a ResourceClaim with an allocation; without it, Kubernetes never takes the devices back."""
MOST_RESULTS = 32
"""So many devices one ResourceClaim can have."""


def device_name(uuid: str) -> str:
    """The name of a GPU or MIG slice in a ResourceSlice and in an allocation."""
    return uuid.lower()


class AllocatedDevice(Value, frozen=True, kw_only=True):
    """A device that a claim has, for one of its requests."""

    request: str
    driver: str
    pool: str
    device: str

    @property
    def main_request(self) -> str:
        """The request without the alternative that was chosen, which follows a slash."""
        return self.request.partition("/")[0]


class DeviceAllocation(Value, frozen=True, kw_only=True):
    """The devices of a claim."""

    results: tuple[AllocatedDevice, ...] = ()


class Allocation(Value, frozen=True, kw_only=True):
    """What was allocated to a claim."""

    devices: DeviceAllocation = DeviceAllocation()


class ClaimConsumer(Value, frozen=True, kw_only=True):
    """A pod that a claim is reserved for."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Value, frozen=True, kw_only=True):
    """Without an allocation the claim waits."""

    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaimSpec(Value, frozen=True, kw_only=True):
    """What a claim asks for, as it was written: the scheduler rejects what it does not know."""

    devices: dict[str, Any] = msgspec.field(default_factory=dict)


class ResourceClaim(Object, frozen=True, kw_only=True):
    """Devices for one or several pods."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def our_devices(self) -> tuple[AllocatedDevice, ...]:
        """The devices of our driver that are allocated to the claim."""
        allocation = self.status.allocation
        results = () if allocation is None else allocation.devices.results
        return tuple(one for one in results if one.driver == DRIVER)

    def is_reserved_for(self, uid: str) -> bool:
        """Tell whether a pod may use the claim."""
        return any(one.uid == uid for one in self.status.reserved_for)


class DeviceClassSpec(Value, frozen=True, kw_only=True):
    """Which devices belong to a class, as it was written."""

    selectors: tuple[dict[str, Any], ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class DeviceClass(Object, frozen=True, kw_only=True):
    """A kind of devices that requests name."""

    spec: DeviceClassSpec = DeviceClassSpec()


class ResourcePool(Value, frozen=True, kw_only=True):
    """A pool of devices; readers use the slices of its highest generation."""

    name: str
    generation: int = 1
    resource_slice_count: int = 1


class ResourceSliceSpec(Value, frozen=True, kw_only=True):
    """The devices of a pool that one driver offers on one node."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[dict[str, Any], ...] = ()


class ResourceSlice(Object, frozen=True, kw_only=True):
    """Devices that can be allocated."""

    spec: ResourceSliceSpec = msgspec.field(
        default_factory=lambda: ResourceSliceSpec(driver="", pool=ResourcePool(name=""))
    )


DEVICE_CLASSES = Resource(
    type=DeviceClass,
    kind="DeviceClass",
    plural="deviceclasses",
    group="resource.k8s.io",
    is_namespaced=False,
    is_partial=True,
)
RESOURCE_CLAIMS = Resource(
    type=ResourceClaim,
    kind="ResourceClaim",
    plural="resourceclaims",
    group="resource.k8s.io",
    is_partial=True,
)
RESOURCE_SLICES = Resource(
    type=ResourceSlice,
    kind="ResourceSlice",
    plural="resourceslices",
    group="resource.k8s.io",
    is_namespaced=False,
    is_partial=True,
)
