"""Writes what the agent sees to the API server: at once what matters, the rest now and then.

A change that matters to the scheduler (a device, its health, heat, foreign use) is written at once;
readings that change all the time are written every `interval_seconds`, which is also the heartbeat.
Never are there more writes than one in `shortest_seconds`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from msgspec import structs

from gpu_scheduler.kubernetes.agent.node_status import (
    DeviceEvent,
    HeatLimits,
    Observation,
    device_events,
    is_urgent,
    node_status,
)
from gpu_scheduler.kubernetes.agent.resource_slice import SliceState, resource_slice, slice_name
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import AlreadyExists, KubernetesError, NotFound
from gpu_scheduler.kubernetes.crds.node_status import (
    GPU_NODE_STATUSES,
    GpuNodeStatus,
    GpuNodeStatusStatus,
)
from gpu_scheduler.kubernetes.dynamic_resources import RESOURCE_SLICES
from gpu_scheduler.kubernetes.objects import EVENTS, NODES, ObjectMeta, OwnerReference

FIELD_MANAGER = "gpu-scheduler-agent"
EVENT_NAMESPACE = "default"
"""Where Kubernetes keeps events about objects without a namespace."""
log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """How often the agent writes."""

    interval_seconds: float = 30.0
    shortest_seconds: float = 1.0


class Publisher:
    """Keeps the GpuNodeStatus and the ResourceSlice of one node up to date."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        *,
        heat: HeatLimits,
        settings: PublishSettings,
        clock: Callable[[], float],
        offers_slices: bool = True,
    ) -> None:
        """`clock` is monotonic; without `offers_slices` no ResourceSlice is written."""
        self._client = client
        self._node = node
        self._heat = heat
        self._settings = settings
        self._clock = clock
        self._offers_slices = offers_slices
        self._seen: Observation | None = None
        self._last: GpuNodeStatusStatus | None = None
        self._written_at = float("-inf")
        self._slice = SliceState()
        self._owner: OwnerReference | None = None
        self._wake = asyncio.Event()
        self.writes = 0
        self.failures = 0

    def observe(self, seen: Observation) -> None:
        """Take the newest observation; `run` writes it."""
        self._seen = seen
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; a failed write is repeated with the newest observation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._seen is None or not self._is_due(self._seen):
                continue
            try:
                await self._write(self._seen)
            except KubernetesError as error:
                self.failures += 1
                log.warning("status not written; will retry", error=str(error), code=error.code)
            await asyncio.sleep(self._settings.shortest_seconds)

    def _is_due(self, seen: Observation) -> bool:
        if self._clock() - self._written_at >= self._settings.interval_seconds:
            return True
        last = self._last
        return last is None or is_urgent(last, node_status(seen, last, self._heat))

    async def _write(self, seen: Observation) -> None:
        current, owner = await self._current()
        seen = replace(seen, paused=current.spec.paused_gpus)
        status = node_status(seen, self._last or current.status, self._heat)
        before = self._last or current.status
        changed = structs.replace(current, status=status)
        await self._client.replace(GPU_NODE_STATUSES, changed, subresource="status")
        self._last = status
        self._written_at = self._clock()
        self.writes += 1
        for one in device_events(before, status):
            await self._tell(one, owner, seen.now)
        if self._offers_slices:
            await self._write_slice(status, owner)

    async def _tell(self, what: DeviceEvent, node: OwnerReference, now: datetime) -> None:
        """Write an event about the node; a lost one is not repeated, the status says the same."""
        at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = {
            "metadata": {
                "name": f"{self._node[:200]}.{secrets.token_hex(8)}",
                "namespace": EVENT_NAMESPACE,
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": node.name,
                "uid": node.name,  # as the kubelet and kubectl describe expect it
            },
            "reason": what.reason,
            "message": what.message[:1024],
            "type": "Warning" if what.is_warning else "Normal",
            "source": {"component": FIELD_MANAGER, "host": self._node},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            await self._client.create(EVENTS, manifest)
        except KubernetesError as error:
            log.warning("event not written", error=str(error), code=error.code)

    async def _current(self) -> tuple[GpuNodeStatus, OwnerReference]:
        """The object as it is, made if it is missing, and the node that it belongs to.

        It is deleted together with the node; so when it is missing, the node may be another one.
        """
        try:
            found = await self._client.get(GPU_NODE_STATUSES, self._node)
        except NotFound:
            self._owner = None
            owner = await self._node_reference()
            metadata = ObjectMeta(name=self._node, owner_references=(owner,))
            content = GpuNodeStatus(metadata=metadata)
            try:
                return await self._client.create(GPU_NODE_STATUSES, content), owner
            except AlreadyExists:
                found = await self._client.get(GPU_NODE_STATUSES, self._node)
        return found, await self._node_reference()

    async def _node_reference(self) -> OwnerReference:
        if self._owner is None:
            node = await self._client.get(NODES, self._node)
            self._owner = OwnerReference(
                api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid
            )
        return self._owner

    async def _write_slice(self, status: GpuNodeStatusStatus, owner: OwnerReference) -> None:
        """Write the ResourceSlice if its devices have changed, or if it is gone.

        A kubelet deletes it when it starts.
        """
        name = slice_name(self._node)
        try:
            stored = await self._client.get(RESOURCE_SLICES, name)
        except NotFound:
            self._slice = SliceState()
        else:
            if not self._slice.generation:
                self._slice = SliceState(
                    devices=stored.spec.devices, generation=stored.spec.pool.generation
                )
        content = resource_slice(self._node, status, owner, self._slice)
        if content is None:
            return
        await self._client.apply(
            RESOURCE_SLICES, name, content, field_manager=FIELD_MANAGER, force=True
        )
        self._slice = SliceState.of(content)
