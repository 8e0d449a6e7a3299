"""The DRA driver of a node: the kubelet names claims, CDI names of their devices go out.

The scheduler has written the devices into the status of the claim; the driver makes one CDI device
for each request of the claim. A claim that is prepared again, because the kubelet or the agent was
restarted, gets the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog

from gpu_scheduler.agent.devices.source import DetectedDevice
from gpu_scheduler.kubernetes.agent import rpc
from gpu_scheduler.kubernetes.agent.cdi import CdiDirectory, ContainerEdits, DeviceUnknown
from gpu_scheduler.kubernetes.agent.kubelet_api import dra_pb2 as dra
from gpu_scheduler.kubernetes.agent.kubelet_api import plugin_registration_pb2 as registration
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.dynamic_resources import (
    DRIVER,
    RESOURCE_CLAIMS,
    AllocatedDevice,
    device_name,
)

GROUP = "claim"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SUPPORTED = "v1.DRAPlugin"
log = structlog.get_logger("agent")


class NotPrepared(Exception):
    """A claim cannot be prepared; the text is shown in an event of the pod."""


class DraDriver:
    """Serves the kubelet of one node."""

    def __init__(
        self,
        client: ApiClient,
        *,
        node: str,
        devices: Callable[[], Sequence[DetectedDevice]],
        cdi: CdiDirectory,
        edits: ContainerEdits,
        kubelet_directory: Path,
    ) -> None:
        """`devices` are those of the node now; the kubelet knows the directory by the same path."""
        self._client = client
        self._node = node
        self._devices = devices
        self._cdi = cdi
        self._edits = edits
        self._socket = kubelet_directory / "plugins" / DRIVER / "dra.sock"
        self._registration = kubelet_directory / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Serve, and let the kubelet find us; it does so again whenever it is restarted."""
        driver = await rpc.serve(
            self._socket,
            SERVICE,
            {
                "NodePrepareResources": rpc.unary(self._prepare, dra.NodePrepareResourcesRequest),
                "NodeUnprepareResources": rpc.unary(
                    self._unprepare, dra.NodeUnprepareResourcesRequest
                ),
            },
        )
        announcement = await rpc.serve(
            self._registration,
            "pluginregistration.Registration",
            {
                "GetInfo": rpc.unary(self._info, registration.InfoRequest),
                "NotifyRegistrationStatus": rpc.unary(
                    self._registered, registration.RegistrationStatus
                ),
            },
        )
        self._servers = [announcement, driver]

    async def stop(self) -> None:
        """Stop serving; the kubelet drops a driver whose registration socket is gone."""
        self._registration.unlink(missing_ok=True)
        for server in self._servers:
            await server.stop(grace=1.0)

    async def _info(self, _: registration.InfoRequest, __: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=[SUPPORTED],
        )

    async def _registered(
        self, status: registration.RegistrationStatus, _: Any
    ) -> registration.RegistrationStatusResponse:
        if status.plugin_registered:
            log.info("kubelet has registered the DRA driver")
        else:
            log.error("kubelet rejected the DRA driver", error=status.error)
        return registration.RegistrationStatusResponse()

    async def _prepare(
        self, request: dra.NodePrepareResourcesRequest, _: Any
    ) -> dra.NodePrepareResourcesResponse:
        answer = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            mine = answer.claims[claim.uid]
            try:
                mine.devices.extend(await self._prepared(claim))
            except (NotPrepared, DeviceUnknown, KubernetesError, OSError) as error:
                log.warning("claim not prepared", claim=claim.name, error=str(error))
                mine.error = str(error)
        return answer

    async def _prepared(self, claim: dra.Claim) -> list[dra.Device]:
        """Write the CDI specification of a claim; its devices with their CDI names."""
        found = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        if found.metadata.uid != claim.uid:
            raise NotPrepared(f"claim {claim.name} was replaced by another one of the same name")
        if found.status.allocation is None:
            raise NotPrepared(f"claim {claim.name} is not allocated")
        results = [one for one in found.status.allocation.devices.results if one.driver == DRIVER]
        elsewhere = sorted({one.pool for one in results} - {self._node})
        if elsewhere:
            raise NotPrepared(f"claim {claim.name} has devices of node {elsewhere[0]}")
        requests: dict[str, list[AllocatedDevice]] = {}
        for one in results:
            requests.setdefault(one.main_request, []).append(one)
        devices = self._devices()
        edits = {
            # A container may use several requests of a claim, and a variable has only one value.
            f"{claim.uid}-{name}": self._edits.of(
                [_uuid(one, devices) for one in group], devices, names_devices=len(requests) == 1
            )
            for name, group in requests.items()
        }
        names = dict(zip(requests, self._cdi.write(GROUP, claim.uid, edits), strict=True))
        log.info("claim prepared", claim=claim.name, devices=[one.device for one in results])
        return [
            dra.Device(
                request_names=[one.request],
                pool_name=one.pool,
                device_name=one.device,
                cdi_device_ids=[names[name]] if one is group[0] else [],
            )
            for name, group in requests.items()
            for one in group
        ]

    async def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, _: Any
    ) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            mine = answer.claims[claim.uid]
            try:
                self._cdi.remove(GROUP, claim.uid)
            except OSError as error:
                mine.error = str(error)
        return answer


def _uuid(allocated: AllocatedDevice, devices: Sequence[DetectedDevice]) -> str:
    for device in devices:
        for uuid in (device.uuid, *sorted(device.mig_uuids)):
            if device_name(uuid) == allocated.device:
                return uuid
    raise DeviceUnknown(f"this node has no device {allocated.device}")
