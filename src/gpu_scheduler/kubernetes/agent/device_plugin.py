"""A device plugin of the kubelet: containers get the GPUs that the scheduler has chosen.

The kubelet chooses devices by itself and does not say for which pod. So the devices that we offer
are slots without a meaning: as many as there are GPUs. `Allocate` answers a CDI name that stands
for the slots. Before each start of a container the kubelet calls `PreStartContainer` with the same
slots; then its PodResources API tells which container they belong to, the annotation of the pod
tells which GPUs the scheduler chose, and these are written into the CDI specification of that name.
So two pods that are bound together never swap GPUs, whichever slots they get.

Nothing is kept in memory: after a restart of the agent or the kubelet the same questions have the
same answers. A container whose pod has no GPUs of the scheduler does not start.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from gpu_scheduler.agent.devices.source import DetectedDevice
from gpu_scheduler.kubernetes.agent import rpc
from gpu_scheduler.kubernetes.agent.cdi import CdiDirectory, ContainerEdits, DeviceUnknown
from gpu_scheduler.kubernetes.agent.kubelet_api import device_plugin_pb2 as plugin
from gpu_scheduler.kubernetes.agent.kubelet_api import pod_resources_pb2 as resources
from gpu_scheduler.kubernetes.agent.pods import (
    TERMINAL_PHASES,
    NotAllocated,
    allocated_uuids,
    uuids_of_container,
)
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION, SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import PODS, Pod

GROUP = "slots"
VERSION = "v1beta1"
CHECK_SECONDS = 1.0
log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """A container, as the kubelet tells it; without a name it is an init container of the pod."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSockets:
    """Where the kubelet and its plugins listen."""

    device_plugins: Path
    pod_resources: Path

    @staticmethod
    def below(kubelet_directory: Path) -> KubeletSockets:
        return KubeletSockets(
            device_plugins=kubelet_directory / "device-plugins",
            pod_resources=kubelet_directory / "pod-resources" / "kubelet.sock",
        )

    @property
    def registration(self) -> Path:
        return self.device_plugins / "kubelet.sock"


class DevicePlugin:
    """Offers the slots of one extended resource to the kubelet."""

    def __init__(
        self,
        client: ApiClient,
        resource: str,
        *,
        node: str,
        devices: Callable[[], Sequence[DetectedDevice]],
        cdi: CdiDirectory,
        edits: ContainerEdits,
        sockets: KubeletSockets,
    ) -> None:
        """`devices` are those of the node now."""
        self._client = client
        self.resource = resource
        self._node = node
        self._devices = devices
        self._cdi = cdi
        self._edits = edits
        self._sockets = sockets
        name = hashlib.sha256(resource.encode()).hexdigest()[:8]
        self._socket = sockets.device_plugins / f"gpu-scheduler-{name}.sock"
        self._server: grpc.aio.Server | None = None
        self._registered_at: tuple[int, int] | None = None
        self._uuids: tuple[str, ...] = ()
        self._unhealthy: frozenset[str] = frozenset()
        self._slots: dict[str, bool] = {}
        self._changed = asyncio.Condition()

    # --- running

    async def run(self) -> None:
        """Serve and register until cancelled; again whenever the kubelet was restarted."""
        try:
            while True:
                try:
                    await self._keep_registered()
                except (grpc.aio.AioRpcError, OSError) as error:
                    log.warning(
                        "device plugin not registered; will retry",
                        resource=self.resource,
                        error=_text(error),
                    )
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            await self._stop()

    async def _keep_registered(self) -> None:
        """A kubelet that starts removes all sockets of plugins and creates its own again."""
        try:
            found = self._sockets.registration.stat()
        except FileNotFoundError:
            self._registered_at = None
            return
        kubelet = (found.st_ino, found.st_ctime_ns)
        if self._server is not None and self._socket.exists() and self._registered_at == kubelet:
            return
        await self._stop()
        self._server = await rpc.serve(
            self._socket,
            f"{VERSION}.DevicePlugin",
            {
                "GetDevicePluginOptions": rpc.unary(self._options, plugin.Empty),
                "ListAndWatch": rpc.streaming(self._list_and_watch, plugin.Empty),
                "Allocate": rpc.unary(self._allocate, plugin.AllocateRequest),
                "PreStartContainer": rpc.unary(self._pre_start, plugin.PreStartContainerRequest),
            },
        )
        request = plugin.RegisterRequest(
            version=VERSION,
            endpoint=self._socket.name,
            resource_name=self.resource,
            options=plugin.DevicePluginOptions(pre_start_required=True),
        )
        method = f"/{VERSION}.Registration/Register"
        await rpc.call(self._sockets.registration, method, request, plugin.Empty)
        self._registered_at = kubelet
        log.info("device plugin registered", resource=self.resource)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0.5)
            self._server = None
            self._socket.unlink(missing_ok=True)

    async def offer(self, uuids: Sequence[str], unhealthy: frozenset[str]) -> None:
        """Offer as many slots as there are GPUs; those of unhealthy GPUs get no new containers."""
        if (tuple(uuids), unhealthy) == (self._uuids, self._unhealthy) and self._slots:
            return
        held: dict[str, str] = {}
        if unhealthy:
            try:
                held = await self._held_uuids()
            except (grpc.aio.AioRpcError, KubernetesError) as error:
                log.warning("cannot read the devices of pods", error=_text(error))
        self._uuids, self._unhealthy = tuple(uuids), unhealthy
        async with self._changed:
            self._slots = slot_health(len(uuids), held, unhealthy)
            self._changed.notify_all()

    async def _held_uuids(self) -> dict[str, str]:
        """The GPU behind each slot that a container holds."""
        held: dict[str, str] = {}
        for holder, slots in await self._holders():
            try:
                pod = await self._client.get(PODS, holder.pod, holder.namespace)
                uuids = self._uuids_of(pod, holder)
            except (KubernetesError, NotAllocated):
                continue
            held |= zip(sorted(slots), uuids, strict=False)
        return held

    # --- what the kubelet calls

    async def _options(self, _: plugin.Empty, __: Any) -> plugin.DevicePluginOptions:
        return plugin.DevicePluginOptions(pre_start_required=True)

    async def _list_and_watch(
        self, _: plugin.Empty, __: Any
    ) -> AsyncIterator[plugin.ListAndWatchResponse]:
        told: dict[str, bool] | None = None
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._slots != told)  # noqa: B023 - awaited here
                told = self._slots
            yield plugin.ListAndWatchResponse(
                devices=[
                    plugin.Device(ID=slot, health="Healthy" if healthy else "Unhealthy")
                    for slot, healthy in told.items()
                ]
            )

    async def _allocate(self, request: plugin.AllocateRequest, _: Any) -> plugin.AllocateResponse:
        return plugin.AllocateResponse(
            container_responses=[
                plugin.ContainerAllocateResponse(
                    cdi_devices=[plugin.CDIDevice(name=self._cdi.qualified(GROUP, name))]
                )
                for one in request.container_requests
                for name in [self._name_of(one.devices_ids)]
            ]
        )

    async def _pre_start(
        self,
        request: plugin.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[
            plugin.PreStartContainerRequest, plugin.PreStartContainerResponse
        ],
    ) -> plugin.PreStartContainerResponse:
        slots = frozenset(request.devices_ids)
        try:
            uuids = await self.write_specification(slots)
        except (NotAllocated, DeviceUnknown, KubernetesError, OSError) as error:
            log.warning("container not started", slots=sorted(slots), error=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except grpc.aio.AioRpcError as error:
            log.warning("container not started", slots=sorted(slots), error=_text(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, _text(error))
        log.info("container gets GPUs", slots=sorted(slots), gpus=uuids)
        return plugin.PreStartContainerResponse()

    async def write_specification(self, slots: frozenset[str]) -> tuple[str, ...]:
        """Let the CDI name of these slots stand for the GPUs of the container that holds them."""
        holders = await self._holders()
        holder = self._holder_of(slots, holders)
        pod = await self._client.get(PODS, holder.pod, holder.namespace)
        uuids = self._uuids_of(pod, holder)
        if not holder.container:
            uuids = uuids[: len(slots)]
        if len(uuids) != len(slots):
            raise NotAllocated(
                f"pod {holder.namespace}/{holder.pod} asks for {len(slots)} of {self.resource}, and"
                f" the scheduler has allocated {len(uuids)} for this container"
            )
        name = self._name_of(slots)
        self._cdi.write(GROUP, name, {name: self._edits.of(uuids, self._devices())})
        self._cdi.remove_unused(GROUP, {self._name_of(held) for _, held in holders})
        return uuids

    def _uuids_of(self, pod: Pod, holder: SlotHolder) -> tuple[str, ...]:
        where = f"pod {holder.namespace}/{holder.pod}"
        if pod.spec.node_name != self._node or pod.status.phase in TERMINAL_PHASES:
            raise NotAllocated(f"{where} does not run on node {self._node}")
        allocated = allocated_uuids(pod)
        if not allocated:
            raise NotAllocated(
                f"{where} has no annotation {ALLOCATED_ANNOTATION}: {SCHEDULER_NAME} has not"
                f" assigned it; set schedulerName: {SCHEDULER_NAME}"
            )
        # A scheduler that did not know the GpuNodeStatus yet has chosen GPUs by index.
        by_index = {str(device.index): device.uuid for device in self._devices()}
        found = [by_index.get(one, one) for one in allocated]
        mine = [uuid for uuid in found if uuid in self._uuids]
        return uuids_of_container(pod, holder.container, self.resource, mine)

    def _holder_of(
        self, slots: frozenset[str], holders: Sequence[tuple[SlotHolder, frozenset[str]]]
    ) -> SlotHolder:
        """The container with these slots, or the pod with some of them.

        The kubelet does not list init containers, whose slots the later containers inherit.
        """
        exact = [holder for holder, held in holders if held == slots]
        if exact:
            return exact[0]
        pods = {(holder.namespace, holder.pod) for holder, held in holders if held & slots}
        if len(pods) == 1:
            namespace, pod = pods.pop()
            return SlotHolder(namespace=namespace, pod=pod, container="")
        raise NotAllocated(
            f"the kubelet knows no pod for {self.resource} {', '.join(sorted(slots))}; only an init"
            " container asks for it, or the pod is being deleted"
        )

    async def _holders(self) -> list[tuple[SlotHolder, frozenset[str]]]:
        answer = await rpc.call(
            self._sockets.pod_resources,
            "/v1.PodResourcesLister/List",
            resources.ListPodResourcesRequest(),
            resources.ListPodResourcesResponse,
        )
        found = []
        for pod in answer.pod_resources:
            for container in pod.containers:
                # With a NUMA topology there is one entry for each part.
                slots = frozenset(
                    slot
                    for devices in container.devices
                    if devices.resource_name == self.resource
                    for slot in devices.device_ids
                )
                if slots:
                    holder = SlotHolder(
                        namespace=pod.namespace, pod=pod.name, container=container.name
                    )
                    found.append((holder, slots))
        return found

    def _name_of(self, slots: Sequence[str] | frozenset[str]) -> str:
        """One CDI device stands for all slots of a container, since variables have one value."""
        text = "\n".join([self.resource, *sorted(slots)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def slot_health(count: int, held: Mapping[str, str], unhealthy: frozenset[str]) -> dict[str, bool]:
    """Which slots are healthy: as many are not as there are unhealthy GPUs.

    An unhealthy GPU that a container holds takes the slot of that container, any other a free slot:
    so the free healthy slots are as many as the free healthy GPUs.
    """
    slots = [f"slot-{number}" for number in range(count)]
    bad = {slot for slot, uuid in held.items() if uuid in unhealthy}
    free = [slot for slot in slots if slot not in held]
    missing = len(unhealthy) - len(unhealthy & frozenset(held.values()))
    bad |= set(free[max(0, len(free) - missing) :])
    return {slot: slot not in bad for slot in slots}


def _text(error: Exception) -> str:
    return (
        (error.details() or str(error)) if isinstance(error, grpc.aio.AioRpcError) else str(error)
    )
