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


class ResourceClaimStatus(Value, frozen=True, kw_only=True):
    """Without an allocation the claim waits."""

    allocation: Allocation | None = None


class ResourceClaim(Object, frozen=True, kw_only=True):
    """Devices for one or several pods, as far as the agent reads them."""

    status: ResourceClaimStatus = ResourceClaimStatus()


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
