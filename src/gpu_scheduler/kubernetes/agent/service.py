"""The parts of the agent together: it reads the devices, publishes them and serves the kubelet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Gauge

from gpu_scheduler.agent.devices.discovery import (
    DiscoveryOptions,
    HotplugScan,
    RetryingSource,
    open_source,
)
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.monitor import (
    DeviceMonitor,
    DevicePoller,
    MonitorSettings,
    boot_clock,
)
from gpu_scheduler.agent.devices.source import DetectedDevice, NodeInventory
from gpu_scheduler.agent.machine import LocalMachine
from gpu_scheduler.kubernetes.agent.cdi import CdiDirectory, ContainerEdits
from gpu_scheduler.kubernetes.agent.device_plugin import DevicePlugin, KubeletSockets
from gpu_scheduler.kubernetes.agent.dra_driver import DraDriver
from gpu_scheduler.kubernetes.agent.node_status import HeatLimits, Observation
from gpu_scheduler.kubernetes.agent.pods import PodProcesses
from gpu_scheduler.kubernetes.agent.publisher import Publisher, PublishSettings
from gpu_scheduler.kubernetes.client.client import ApiClient, Selection
from gpu_scheduler.kubernetes.container_runtime import (
    FIRST_CDI_KUBELET,
    FIRST_DRA_KUBELET,
    kubelet_version,
    supports_cdi,
)
from gpu_scheduler.kubernetes.names import GPU_RESOURCE, MIG_RESOURCE
from gpu_scheduler.kubernetes.objects import NODES, PODS, NodeSystemInfo, Pod
from gpu_scheduler.kubernetes.reflector import Reflector
from gpu_scheduler.model.measurements import NodeReadings

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How one agent runs. `cdi` None: found out from the version of the runtime."""

    node: str
    discovery: DiscoveryOptions = field(default_factory=DiscoveryOptions)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    publish: PublishSettings = field(default_factory=PublishSettings)
    heat: HeatLimits = field(default_factory=HeatLimits)
    serves_dra: bool = True
    serves_device_plugin: bool = True
    cdi: bool | None = None
    cdi_directory: Path = Path("/var/run/cdi")
    kubelet_directory: Path = Path("/var/lib/kubelet")
    state_directory: Path = Path("/var/lib/gpu-scheduler")
    driver_root: Path = Path("/")


class Agent:
    """All parts of one agent; `run` lasts until it is cancelled."""

    def __init__(
        self, client: ApiClient, options: AgentOptions, metrics: CollectorRegistry
    ) -> None:
        self._client = client
        self._options = options
        self._inventory = NodeInventory(cpu_milli=0, memory_mb=0)
        self._readings = NodeReadings(at_ms=0)
        self._plugins: dict[str, DevicePlugin] = {}
        self._supports_cdi: bool | None = None
        self._problem = ""
        self._temperature = Gauge(
            "gpu_agent_temperature_celsius", "Temperature of a GPU", ["gpu"], registry=metrics
        )
        self._healthy = Gauge(
            "gpu_agent_gpu_healthy", "1 if a GPU can be trusted", ["gpu"], registry=metrics
        )
        self._utilization = Gauge(
            "gpu_agent_utilization_percent", "How busy a GPU is", ["gpu"], registry=metrics
        )
        self._memory_used = Gauge(
            "gpu_agent_memory_used_bytes", "GPU memory in use", ["gpu"], registry=metrics
        )
        self._power = Gauge(
            "gpu_agent_power_watts", "The power that a GPU draws", ["gpu"], registry=metrics
        )
        self._writes = Gauge(
            "gpu_agent_status_writes", "Writes of the GpuNodeStatus", registry=metrics
        )
        self._failures = Gauge(
            "gpu_agent_status_write_failures", "Writes that failed", registry=metrics
        )

    def devices(self) -> Sequence[DetectedDevice]:
        """The devices of the node now."""
        return self._inventory.devices

    async def run(self) -> None:
        """Publish and serve until cancelled, or until a part of it fails."""
        options = self._options
        node = (await self._client.get(NODES, options.node)).status.node_info
        serves_dra, serves_plugin = self._choose_ways(node)
        publisher = Publisher(
            self._client,
            options.node,
            heat=options.heat,
            settings=options.publish,
            clock=time.monotonic,
            offers_slices=serves_dra,
        )
        pods = Reflector(self._client, PODS, Selection(fields=f"spec.nodeName={options.node}"))
        cdi = CdiDirectory(options.cdi_directory)
        edits = ContainerEdits(
            driver_root=options.driver_root,
            toolkit_directories=(options.driver_root / "etc/cdi", options.cdi_directory),
        )
        driver = DraDriver(
            self._client,
            node=options.node,
            devices=self.devices,
            cdi=cdi,
            edits=edits,
            kubelet_directory=options.kubelet_directory,
        )

        def make_plugin(resource: str) -> DevicePlugin:
            return DevicePlugin(
                self._client,
                resource,
                node=options.node,
                devices=self.devices,
                cdi=cdi,
                edits=edits,
                sockets=KubeletSockets.below(options.kubelet_directory),
            )

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pods.run())
            # Before that, a process of a pod would count as foreign.
            await pods.wait_until_synced()
            monitor = await asyncio.to_thread(self._monitor, pods.objects)
            offers = asyncio.Event()

            def on_readings(readings: NodeReadings) -> None:
                self._readings = readings
                publisher.observe(self._observation(monitor))
                self._show(publisher)
                offers.set()

            def on_inventory(inventory: NodeInventory) -> None:
                self._inventory = inventory

            tasks.create_task(publisher.run())
            tasks.create_task(DevicePoller(monitor, on_readings, on_inventory).run())
            try:
                if serves_dra:
                    await driver.start()
                while True:
                    await offers.wait()
                    offers.clear()
                    if serves_plugin:
                        await self._offer(make_plugin, tasks)
            finally:
                await driver.stop()

    def _choose_ways(self, node: NodeSystemInfo) -> tuple[bool, bool]:
        """Whether to serve DRA, and the device plugin: only where containers really get devices."""
        options = self._options
        found = supports_cdi(node) if options.cdi is None else options.cdi
        self._supports_cdi = found
        kubelet = kubelet_version(node)
        wants_any = options.serves_dra or options.serves_device_plugin
        runtime = node.container_runtime_version or "the container runtime"
        if wants_any and not found:
            does_not = "does not inject" if found is False else "may not inject"
            self._problem = (
                f"{runtime} {does_not} devices by CDI; upgrade to containerd 2, or enable CDI in"
                " its configuration and start the agent with --cdi yes; until then GPUs reach a"
                " container only by its environment"
            )
        elif options.serves_dra and kubelet < FIRST_DRA_KUBELET:
            self._problem = f"kubelet {node.kubelet_version} is too old for DRA, which needs 1.34"
        if self._problem:
            log.warning(
                "this node cannot pass devices to containers in every way", reason=self._problem
            )
        return (
            options.serves_dra and bool(found) and kubelet >= FIRST_DRA_KUBELET,
            options.serves_device_plugin and bool(found) and kubelet >= FIRST_CDI_KUBELET,
        )

    def _monitor(self, pods: Mapping[tuple[str, str], Pod]) -> DeviceMonitor:
        """Find the devices; a hanging driver costs up to half a minute."""
        options = self._options
        source = open_source(options.discovery)
        self._inventory = source.find()
        options.state_directory.mkdir(parents=True, exist_ok=True)
        monitor = DeviceMonitor(
            source,
            self._inventory,
            PodProcesses(pods).owner_of,
            settings=options.monitor,
            health_file=options.state_directory / "devices.json",
            boot_id=LocalMachine().boot_id(),
        )
        monitor.hotplug = HotplugScan(
            source.find,
            self._inventory,
            Host().gpus,
            retry_when_empty=isinstance(source, RetryingSource),
        )
        return monitor

    def _observation(self, monitor: DeviceMonitor) -> Observation:
        return Observation(
            inventory=self._inventory,
            readings=self._readings,
            health=monitor.health,
            now=datetime.now(UTC),
            uptime_seconds=boot_clock(),
            supports_cdi=self._supports_cdi,
            injection_problem=self._problem,
        )

    def _show(self, publisher: Publisher) -> None:
        """Set the metrics."""
        for reading in self._readings.readings:
            self._temperature.labels(gpu=str(reading.index)).set(reading.temperature_c)
            self._healthy.labels(gpu=str(reading.index)).set(int(reading.healthy))
            self._memory_used.labels(gpu=str(reading.index)).set(reading.memory_used_mb << 20)
            if reading.load_percent is not None:
                self._utilization.labels(gpu=str(reading.index)).set(reading.load_percent)
            if reading.power_known:
                self._power.labels(gpu=str(reading.index)).set(reading.power_mw / 1000)
        self._writes.set(publisher.writes)
        self._failures.set(publisher.failures)

    async def _offer(self, make: Callable[[str], DevicePlugin], tasks: asyncio.TaskGroup) -> None:
        """Offer the devices that exist now; a resource that is new gets a plugin of its own."""
        unhealthy = {reading.index for reading in self._readings.readings if not reading.healthy}
        resources = offered_resources(self._inventory.devices, unhealthy)
        for name in resources.keys() - self._plugins.keys():
            self._plugins[name] = make(name)
            tasks.create_task(self._plugins[name].run())
        for name, plugin in self._plugins.items():
            uuids, bad = resources.get(name, ((), frozenset()))
            await plugin.offer(uuids, bad)


def offered_resources(
    devices: Sequence[DetectedDevice], unhealthy: Collection[int]
) -> dict[str, tuple[tuple[str, ...], frozenset[str]]]:
    """The UUIDs of each extended resource, and those among them that are not healthy.

    A GPU in MIG mode is offered as its slices. Whole GPUs are always offered, also if there are
    none: the kubelet keeps the resource of a plugin that has gone.
    """
    found: dict[str, list[tuple[str, bool]]] = {GPU_RESOURCE: []}
    for device in devices:
        is_bad = device.index in unhealthy
        if not device.mig_slices and device.uuid:
            found[GPU_RESOURCE].append((device.uuid, is_bad))
        for piece in device.mig_slices:
            slices = found.setdefault(f"{MIG_RESOURCE}{piece.profile}", [])
            slices += [(uuid, is_bad) for uuid in piece.uuids]
    return {
        name: (
            tuple(uuid for uuid, _ in pairs),
            frozenset(uuid for uuid, is_bad in pairs if is_bad),
        )
        for name, pairs in found.items()
    }
