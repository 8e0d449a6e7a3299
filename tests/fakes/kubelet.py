"""A kubelet as far as plugins see it: registration, its device manager, the PodResources API.

It chooses slots by itself, never says for which pod, forgets its plugins at a restart and removes
their sockets, as the real one does. `tests/kubernetes/test_real_kubelet.py` runs the same agent
against the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from gpu_scheduler.kubernetes.agent import rpc
from gpu_scheduler.kubernetes.agent.kubelet_api import device_plugin_pb2 as plugin
from gpu_scheduler.kubernetes.agent.kubelet_api import dra_pb2 as dra
from gpu_scheduler.kubernetes.agent.kubelet_api import plugin_registration_pb2 as registration
from gpu_scheduler.kubernetes.agent.kubelet_api import pod_resources_pb2 as resources


class FakeKubelet:
    """Serves below a directory as the real one does below /var/lib/kubelet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registered: list[str] = []
        self.devices: dict[str, dict[str, str]] = {}
        self.held: dict[tuple[str, str, str], tuple[str, frozenset[str]]] = {}
        """By namespace, pod and container: the resource and the slots."""
        self.cdi_names: dict[tuple[str, str, str], list[str]] = {}
        self._sockets: dict[str, Path] = {}
        self._servers: list[grpc.aio.Server] = []
        self._watches: list[asyncio.Task[None]] = []

    @property
    def plugins(self) -> Path:
        return self.directory / "device-plugins"

    async def start(self) -> None:
        """Start, and remove the sockets of all plugins; what pods hold is known from a file."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        for socket in self.plugins.glob("*.sock"):
            socket.unlink()
        self.devices.clear()
        self._servers = [
            await rpc.serve(
                self.directory / "pod-resources" / "kubelet.sock",
                "v1.PodResourcesLister",
                {"List": rpc.unary(self._list, resources.ListPodResourcesRequest)},
            ),
            await rpc.serve(
                self.plugins / "kubelet.sock",
                "v1beta1.Registration",
                {"Register": rpc.unary(self._register, plugin.RegisterRequest)},
            ),
        ]

    async def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        for server in self._servers:
            await server.stop(grace=0)
        (self.plugins / "kubelet.sock").unlink(missing_ok=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # --- device plugins

    async def _register(self, request: plugin.RegisterRequest, _: Any) -> plugin.Empty:
        assert request.version == "v1beta1"
        assert request.options.pre_start_required
        self.registered.append(request.resource_name)
        self._sockets[request.resource_name] = self.plugins / request.endpoint
        self._watches.append(asyncio.create_task(self._watch(request.resource_name)))
        return plugin.Empty()

    async def _watch(self, resource: str) -> None:
        with suppress(grpc.aio.AioRpcError):
            async with grpc.aio.insecure_channel(f"unix:{self._sockets[resource]}") as channel:
                watch: Any = channel.unary_stream(
                    "/v1beta1.DevicePlugin/ListAndWatch",
                    request_serializer=plugin.Empty.SerializeToString,
                    response_deserializer=plugin.ListAndWatchResponse.FromString,
                )
                async for answer in watch(plugin.Empty()):
                    self.devices[resource] = {one.ID: one.health for one in answer.devices}

    def allocatable(self, resource: str = "nvidia.com/gpu") -> int:
        return sum(health == "Healthy" for health in self.devices.get(resource, {}).values())

    async def admit(
        self, pod: str, container: str, *slots: str, resource: str = "nvidia.com/gpu"
    ) -> None:
        """Give slots to a container, which the kubelet chooses as it likes."""
        free = set(self.devices[resource]) - set(self._slots_in_use())
        assert set(slots) <= free, f"{slots} of {free}"
        request = plugin.AllocateRequest(
            container_requests=[plugin.ContainerAllocateRequest(devices_ids=slots)]
        )
        answer = await self._call(resource, "Allocate", request, plugin.AllocateResponse)
        key = ("default", pod, container)
        self.held[key] = (resource, frozenset(slots))
        self.cdi_names[key] = [one.name for one in answer.container_responses[0].cdi_devices]

    async def start_container(self, pod: str, container: str) -> list[str]:
        """Ask the plugin before the start, as at each restart; the CDI names for the runtime."""
        key = ("default", pod, container)
        resource, slots = self.held[key]
        request = plugin.PreStartContainerRequest(devices_ids=slots)
        await self._call(resource, "PreStartContainer", request, plugin.PreStartContainerResponse)
        return self.cdi_names[key]

    def end_pod(self, pod: str) -> None:
        for key in [key for key in self.held if key[1] == pod]:
            del self.held[key]

    def _slots_in_use(self) -> Iterator[str]:
        for _, slots in self.held.values():
            yield from slots

    async def _call(self, resource: str, method: str, request: Any, answer: Any) -> Any:
        path = f"/v1beta1.DevicePlugin/{method}"
        return await rpc.call(self._sockets[resource], path, request, answer)

    async def _list(
        self, _: resources.ListPodResourcesRequest, __: Any
    ) -> resources.ListPodResourcesResponse:
        answer = resources.ListPodResourcesResponse()
        for (namespace, pod, container), (resource, slots) in self.held.items():
            devices = resources.ContainerDevices(resource_name=resource, device_ids=slots)
            one = resources.ContainerResources(name=container, devices=[devices])
            answer.pod_resources.append(
                resources.PodResources(name=pod, namespace=namespace, containers=[one])
            )
        return answer

    # --- DRA drivers

    async def find_driver(self) -> Path:
        """Ask the driver that has put a socket into the directory of plugins; its own socket."""
        [socket] = (self.directory / "plugins_registry").glob("*.sock")
        info = await rpc.call(
            socket,
            "/pluginregistration.Registration/GetInfo",
            registration.InfoRequest(),
            registration.PluginInfo,
        )
        assert (info.type, list(info.supported_versions)) == ("DRAPlugin", ["v1.DRAPlugin"])
        await rpc.call(
            socket,
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration.RegistrationStatus(plugin_registered=True),
            registration.RegistrationStatusResponse,
        )
        return Path(info.endpoint)

    async def prepare(self, *claims: dra.Claim) -> dra.NodePrepareResourcesResponse:
        return await rpc.call(
            await self.find_driver(),
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra.NodePrepareResourcesRequest(claims=claims),
            dra.NodePrepareResourcesResponse,
        )

    async def unprepare(self, *claims: dra.Claim) -> dra.NodeUnprepareResourcesResponse:
        return await rpc.call(
            await self.find_driver(),
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            dra.NodeUnprepareResourcesRequest(claims=claims),
            dra.NodeUnprepareResourcesResponse,
        )
