"""From an agent's configuration to its devices: what to look for, and how to watch it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.detect import Wanted
from gpu_scheduler.agent.devices.fabric import find_fabric
from gpu_scheduler.agent.devices.foreign import ForeignRule
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.inventory import DeviceSource, Found
from gpu_scheduler.agent.devices.rescan import Rescan
from gpu_scheduler.agent.devices.seeking import Seeking
from gpu_scheduler.agent.devices.watch import Watcher, WatchSettings
from gpu_scheduler.agent.machine import ThisMachine
from gpu_scheduler.agent.owners import Owners


def wanted_devices(config: AgentConfig) -> Wanted:
    """How devices are to be found."""
    method = "declared" if config.simulate else config.detection_method
    return Wanted(
        method=method,
        declared=config.simulate,
        node=config.node,
        cpu_milli=config.cpu_milli,
        memory_mb=config.memory_mb,
        readings_file=Path(config.dir) / "readings.json",
        deadline_s=config.read_timeout_s,
    )


def as_configured(found: Found, config: AgentConfig) -> Found:
    """What was found, as far as it is to be used, and what people say about the node."""
    most = config.most_devices
    return replace(
        found,
        devices=found.devices[:most] if most else found.devices,
        labels=tuple(sorted({**dict(found.labels), **config.labels}.items())),
        rack=config.rack,
        fabric=find_fabric(),
    )


def watcher_of(config: AgentConfig, source: DeviceSource, found: Found) -> Watcher | None:
    """Who looks at the devices from now on; nobody where there are none and none can come."""
    if not found.devices and not isinstance(source, Seeking):
        return None
    rule = ForeignRule(
        memory_threshold=config.memory_threshold,
        load_threshold=config.load_threshold,
        ignore_names=ForeignRule().ignore_names + config.ignore_programs,
        ignore_users=config.ignore_users,
    )
    settings = WatchSettings(
        monitor_interval_s=config.monitor_interval_s,
        utilization_window_s=config.utilization_window_s,
        foreign=rule,
        release_timeout_s=config.release_timeout_s,
        release_tolerance_mb=config.release_tolerance_mb,
        breaker_failures=config.breaker_failures,
        breaker_backoff_s=config.breaker_backoff_s,
    )
    memory = Path(config.dir) / "devices.json"
    owner_of = Owners(config.scratch_dir).owner_of

    def find() -> Found:
        # Drivers tell of new devices only to who comes anew.
        source.close()
        return as_configured(source.find(), config)

    watcher = Watcher(
        source, found, owner_of, settings=settings, memory=memory, boot_id=ThisMachine().boot_id()
    )
    watcher.rescan = Rescan(find, found, Host().gpus, seeks=isinstance(source, Seeking))
    return watcher
