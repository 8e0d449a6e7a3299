"""Translates a start order of the server into work for the launcher.

The agent chooses what only this node can choose: ports and MIG slices. These assignments are stored
in a file until the work is forgotten, so that a restarted agent gives the rest of a gang the same
port, and no port or slice twice.

A MIG slice can be destroyed while a job uses it. The server counts slices by profile, so a slice
that is in use and destroyed stays in the inventory until its job has ended: the server can assign
all other slices, and this one to no other job.

Beside its own limits, work gets those of the node: processes and memory of all jobs and of each
user, and the memory of a job that requests none. They keep a part of the machine for the system and
for the scheduler itself. A node that serves one user has the same limit for this user and for all
jobs, and no default of the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_scheduler.agent.cgroups import kernel_process_limit
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice, NodeInventory
from gpu_scheduler.agent.jobs.environment import (
    conda_command,
    home_directory,
    job_environment,
    job_number,
    nccl_hints,
    rendezvous_files,
    work_devices,
)
from gpu_scheduler.agent.jobs.network import free_port, interface_of, is_free
from gpu_scheduler.agent.launcher_protocol import Key, Work, WorkTerminal
from gpu_scheduler.agent.machine import Account, replace_file
from gpu_scheduler.model.launch import output_file
from gpu_scheduler.wire import agent_pb2 as pb

ASSIGNMENTS_FILE = "chosen.json"
NO_ACCOUNT = Account()
FROM_ORDER = (
    *("job_id", "attempt", "name", "script", "uid", "gid", "user", "umask", "image"),
    "image_digest",
    *("limit_ms", "warn_signal", "warn_before_ms", "lease_ms"),
)
"""Fields of the work that the start order has under the same name."""
FROM_CONFIG = (
    *("log_files", "prolog", "epilog"),
    *("hook_timeout_ms", "start_timeout_ms", "engine_timeout_ms"),
)
"""Fields of the work that are configured for the node."""
FOR_CONTAINERS = ("engine_user", "image_stores", "allowed_images")
"""The same for containers of other users than root. An older launcher, which would run their engine
as root, does not know these fields and refuses the work."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG slice of a job; the profile is empty if an older agent stored no profile."""

    uuid: str
    profile: str = ""


HeldSlices = Mapping[Key, Mapping[int, Slice]]
"""Slices by work and device index."""


def lost_slices(inventory: NodeInventory, held: HeldSlices) -> Iterator[tuple[Key, int, Slice]]:
    """Held slices that no longer exist, with their work and device index."""
    existing = {device.index: device.mig_uuids for device in inventory.devices}
    for key, slices in held.items():
        for index, one in slices.items():
            if one.uuid not in existing.get(index, ()):
                yield key, index, one


def with_lost_slices(inventory: NodeInventory, held: HeldSlices) -> NodeInventory:
    """The inventory for the server, with lost slices. A device that is gone stays gone."""
    lost: dict[int, list[Slice]] = {}
    for _, index, one in lost_slices(inventory, held):
        if one.profile:
            lost.setdefault(index, []).append(one)
    if not lost:
        return inventory
    devices = tuple(_add_slices(device, lost.get(device.index, [])) for device in inventory.devices)
    return replace(inventory, devices=devices)


def _add_slices(device: DetectedDevice, lost: list[Slice]) -> DetectedDevice:
    uuids = {piece.profile: piece.uuids for piece in device.mig_slices}
    for one in sorted(lost, key=lambda one: one.uuid):
        uuids[one.profile] = (*uuids.get(one.profile, ()), one.uuid)
    slices = tuple(DetectedSlice(profile=name, uuids=uuids[name]) for name in sorted(uuids))
    return replace(device, mig_slices=slices)


class Assignments:
    """Ports by allocation, which of them belong to services, and slices by work and device."""

    def __init__(self, directory: Path) -> None:
        """Read the assignments of an earlier agent process."""
        self._file = directory / ASSIGNMENTS_FILE
        self.ports: dict[str, int] = {}
        self.of_services: set[str] = set()
        self.slices: dict[Key, dict[int, Slice]] = {}
        self._read()

    def set_port(self, allocation_id: str, port: int, *, of_service: bool = False) -> None:
        """Assign the rendezvous port of a gang, or the port of a service's replica."""
        self.ports[allocation_id] = port
        if of_service:
            self.of_services.add(allocation_id)
        self._write()

    def set_slices(self, key: Key, slices: dict[int, Slice]) -> None:
        self.slices[key] = slices
        self._write()

    def forget(self, allocation_id: str, member: int) -> None:
        """Drop the assignments of work that the server has forgotten."""
        port = self.ports.pop(allocation_id, None)
        self.of_services.discard(allocation_id)
        slices = self.slices.pop((allocation_id, member), None)
        if port is not None or slices is not None:
            self._write()

    def release(self, allocation_id: str, member: int) -> bool:
        """Release the service port and MIG slices of ended work; tells whether it had slices.

        They are free before the work is forgotten, as its successor may come earlier. A gang keeps
        its port until it is forgotten.
        """
        is_service = allocation_id in self.of_services
        if is_service:
            self.of_services.discard(allocation_id)
            self.ports.pop(allocation_id, None)
        slices = self.slices.pop((allocation_id, member), None)
        if is_service or slices is not None:
            self._write()
        return slices is not None

    def keep_only(self, held: Iterable[Key]) -> None:
        """Drop all assignments of other work."""
        keys = set(held)
        names = {allocation_id for allocation_id, _ in keys}
        before = len(self.ports) + len(self.slices)
        self.ports = {name: port for name, port in self.ports.items() if name in names}
        self.of_services &= names
        self.slices = {key: slices for key, slices in self.slices.items() if key in keys}
        if len(self.ports) + len(self.slices) != before:
            self._write()

    def _read(self) -> None:
        """Read the file; an unreadable file counts as empty, so that jobs can run."""
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            ports = {str(name): int(port) for name, port in known["ports"].items()}
            profiles = known.get("profiles", {})
            slices = {
                (str(name), int(member)): {
                    int(index): Slice(str(uuid), str(profiles.get(uuid, "")))
                    for index, uuid in uuids
                }
                for name, member, uuids in known["slices"]
            }
            of_services = {str(name) for name in known.get("services", ())}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return
        self.ports, self.of_services, self.slices = ports, of_services, slices

    def _write(self) -> None:
        """Write the file; on a full disk the assignments stay in memory only."""
        slices = [
            [*key, [(index, one.uuid) for index, one in held.items()]]
            for key, held in self.slices.items()
        ]
        profiles = {one.uuid: one.profile for held in self.slices.values() for one in held.values()}
        content = {
            "ports": self.ports,
            "services": sorted(self.of_services),
            "slices": slices,
            "profiles": profiles,
        }
        with suppress(OSError):
            replace_file(self._file, json.dumps(content))


class NoFreeSlice(Exception):
    """A MIG slice that the server assigned does not exist or is not free; the message names it."""


class PortTaken(Exception):
    """The port that a service asks for is not free on this node."""


class OrderTranslator:
    """Translates start orders; `assignments` are the ports and MIG slices of work."""

    def __init__(self, config: AgentConfig, inventory: NodeInventory) -> None:
        self._config = config
        self._many_users = os.geteuid() == 0
        limits = node_limits(
            config,
            kernel_processes=kernel_process_limit(),
            host_memory_mb=Host().memory_mb(),
            many_users=self._many_users,
        )
        self._node_limits = {name: getattr(limits, name) for name in NodeLimits.__slots__}
        self.set_inventory(inventory)
        self.assignments = Assignments(Path(config.dir))
        self._warned_lost: list[tuple[Key, int, Slice]] = []

    def set_inventory(self, inventory: NodeInventory) -> None:
        """Replace the inventory; running work keeps its devices."""
        self._inventory = inventory
        self._devices = {device.index: device for device in inventory.devices}
        self._adapters = inventory.fabric.adapters

    def translate(self, order: pb.Order, account: Account = NO_ACCOUNT) -> Work:
        """The work of one member, as the launcher needs it; `account` is that of its user."""
        config, start = self._config, order.start
        scratch = self.scratch_dir(order.allocation_id, order.member)
        held = {device.index: device for device in start.devices}
        slices = self._assign_slices(order)
        devices = work_devices(held, self._devices, slices)
        # The first member chooses the port; on one node every member knows the same choice.
        chooses_port = start.HasField("rendezvous") and (
            start.rendezvous.rank == 0 or not start.prepare_only
        )
        port = self.gang_port(order.allocation_id) if chooses_port else 0
        environment = job_environment(order, account, devices, scratch, port)
        if start.prepare_only:  # a gang on several nodes
            numa_nodes = [self._devices[i].numa_node for i in held if i in self._devices]
            interface = interface_of(config.address)
            environment = {**nccl_hints(self._adapters, numa_nodes, interface), **environment}
        service_port = self._service_port(order)
        if service_port:
            environment |= {"PORT": str(service_port), "TGPU_SERVICE_PORT": str(service_port)}
        workdir = start.workdir or home_directory(environment)
        runner = start.runner or "process"
        for_container = FOR_CONTAINERS if runner == "container" and start.uid else ()
        max_processes = config.most_processes if config.enforce_limits else 0
        if start.max_processes:
            max_processes = min(start.max_processes, max_processes or start.max_processes)
        memory_mb = start.memory_mb or config.default_memory_mb
        closed = tuple(
            device.path
            for index, device in sorted(self._devices.items())
            if device.path and index not in held
        )
        return Work(
            allocation_id=order.allocation_id,
            member=order.member,
            **{name: getattr(start, name) for name in FROM_ORDER},
            **{name: getattr(config, name) for name in (*FROM_CONFIG, *for_container)},
            task=start.task if start.HasField("task") else None,
            argv=conda_command(start, environment),
            workdir=workdir,
            environment=environment,
            runner=runner,
            mounts=tuple((m.source, m.target, m.read_only) for m in start.mounts),
            devices=devices,
            closed_devices=closed,
            cpu_milli=start.cpu_milli if config.enforce_limits else 0,
            memory_mb=memory_mb if config.enforce_limits else 0,
            default_memory_mb=0 if memory_mb else self._default_memory_mb(start),
            **self._node_limits,
            cpus=self._local_cpus(held),
            max_processes=max_processes,
            grace_ms=start.grace_ms if start.HasField("grace_ms") else config.grace_ms,
            # A relative path is relative to the job's directory, not to the launcher's.
            log_path=os.path.join(  # noqa: PTH118
                workdir, output_file(start.output, job_number(start), start.name)
            )
            if start.output
            else self.log_path(start.job_id, order.allocation_id, order.member),
            log_of_user=bool(start.output),
            log_max_bytes=0 if start.output else config.log_max_bytes,
            scratch_dir=scratch,
            terminal=_terminal(start),
            members_here=int(environment.get("LOCAL_WORLD_SIZE", 1)),
            prepare_ms=max(1, start.prepare_ms) if start.prepare_only else 0,
            files=rendezvous_files(start.rendezvous) if start.HasField("rendezvous") else {},
        )

    def scratch_dir(self, allocation_id: str, member: int) -> str:
        """The directory that a member shares with the launcher."""
        return f"{self._config.scratch_dir}/{allocation_id}.{member}"

    def log_path(self, job_id: str, allocation_id: str, member: int) -> str:
        """The file with the output of a member."""
        return f"{self._config.logs_dir}/{job_id}/{allocation_id}.{member}.log"

    def inventory(self) -> NodeInventory:
        """The inventory for the server: existing devices, and slices that are in use and lost."""
        return with_lost_slices(self._inventory, self.assignments.slices)

    def newly_lost_slices(self) -> list[tuple[Key, int, Slice]]:
        """Work whose MIG slice no longer exists, with the device index; each once."""
        lost = list(lost_slices(self._inventory, self.assignments.slices))
        new = [one for one in lost if one not in self._warned_lost]
        self._warned_lost = lost
        return new

    def _default_memory_mb(self, start: pb.Start) -> int:
        """The memory limit of a job that requests none; 0 for root and on a node of one user."""
        if not self._many_users or not start.uid:
            return 0
        gpu_milli = sum(device.share_milli or WHOLE_MILLI for device in start.devices)
        return default_memory_mb(self._config, self._inventory, gpu_milli, start.cpu_milli)

    def _local_cpus(self, held: dict[int, pb.HeldDevice]) -> tuple[int, ...]:
        """The CPUs near the devices, if the topology is known for all of them."""
        cpus: set[int] = set()
        for index in held:
            device = self._devices.get(index)
            if device is None or not device.cpus:
                return ()
            cpus.update(device.cpus)
        return tuple(sorted(cpus))

    def gang_port(self, allocation_id: str) -> int:
        """A port that was free when it was chosen, the same for all members of an allocation."""
        port = self.assignments.ports.get(allocation_id)
        if port is None:
            port = free_port(self.assignments.ports.values())
            self.assignments.set_port(allocation_id, port)
        return port

    def _service_port(self, order: pb.Order) -> int:
        """The port of a replica: the requested one, or a free one; 0 for other work."""
        start = order.start
        if not start.port and not start.pick_port:
            return 0
        port = self.assignments.ports.get(order.allocation_id)
        if port is None:
            taken = set(self.assignments.ports.values())
            port = free_port(taken) if start.pick_port else start.port
            if port in taken or not is_free(port):
                raise PortTaken(f"port {port} is in use on this node")
            self.assignments.set_port(order.allocation_id, port, of_service=True)
        return port

    def _assign_slices(self, order: pb.Order) -> dict[int, str]:
        """Assign free MIG slices of the requested profiles; their UUIDs by device index."""
        key = (order.allocation_id, order.member)
        assigned = self.assignments.slices
        if key in assigned:
            return {index: one.uuid for index, one in assigned[key].items()}
        taken = {one.uuid for slices in assigned.values() for one in slices.values()}
        mine: dict[int, Slice] = {}
        for held in order.start.devices:
            device = self._devices.get(held.index)
            if held.mig_profile and device is not None:
                free = [
                    uuid
                    for piece in device.mig_slices
                    if piece.profile == held.mig_profile
                    for uuid in piece.uuids
                    if uuid not in taken
                ]
                if not free:
                    raise NoFreeSlice(
                        f"no slice {held.mig_profile} of GPU {held.index} is free on this node"
                    )
                mine[held.index] = Slice(free[0], held.mig_profile)
        if mine:
            self.assignments.set_slices(key, mine)
        return {index: one.uuid for index, one in mine.items()}


def _terminal(start: pb.Start) -> WorkTerminal | None:
    if not start.HasField("terminal"):
        return None
    return WorkTerminal(**{name: getattr(start.terminal, name) for name in WorkTerminal.__slots__})


MIN_RESERVED_MB = 1024
"""Or a quarter of a small machine."""
MAX_RESERVED_MB = 16 * 1024
RESERVED_PART = 20
WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The limits; 0: none. The fields are those of `Work`."""

    max_user_processes: int = 0
    max_all_processes: int = 0
    max_all_memory_mb: int = 0


def node_limits(
    config: AgentConfig, *, kernel_processes: int, host_memory_mb: int, many_users: bool
) -> NodeLimits:
    """The limits of a node; those that are not configured are parts of what the host has."""
    if not config.enforce_limits:
        return NodeLimits()
    processes = kernel_processes * 3 // 4
    if config.max_all_processes:
        processes = min(config.max_all_processes, processes or config.max_all_processes)
    of_user = config.max_user_processes or (processes // 2 if many_users else processes)
    reserved_mb = config.reserved_memory_mb or min(
        MAX_RESERVED_MB,
        max(min(MIN_RESERVED_MB, host_memory_mb // 4), host_memory_mb // RESERVED_PART),
    )
    return NodeLimits(
        max_user_processes=min(of_user, processes or of_user),
        max_all_processes=processes,
        max_all_memory_mb=max(0, host_memory_mb - reserved_mb),
    )


def default_memory_mb(
    config: AgentConfig, inventory: NodeInventory, gpu_milli: int, cpu_milli: int
) -> int:
    """The memory of a job that requests none: its share of the node by GPUs or CPU cores.

    0: no limit, since the default is switched off.
    """
    if not config.enforce_limits or not config.default_memory_percent:
        return 0
    gpus_milli = len(inventory.devices) * WHOLE_MILLI
    by_gpus = inventory.memory_mb * gpu_milli // gpus_milli if gpus_milli else 0
    by_cpus = inventory.memory_mb * cpu_milli // inventory.cpu_milli if inventory.cpu_milli else 0
    share_mb = max(by_gpus, by_cpus) * config.default_memory_percent // 100
    return min(inventory.memory_mb, max(share_mb, config.default_memory_floor_mb))
