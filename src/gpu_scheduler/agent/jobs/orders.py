"""An order from the server becomes work for the launcher."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_scheduler.agent.accounts import Account
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice, NodeInventory
from gpu_scheduler.agent.jobs.environment import (
    conda_command,
    home_directory,
    job_environment,
    nccl_hints,
    rendezvous_files,
    work_devices,
)
from gpu_scheduler.agent.jobs.network import free_port, interface_of, is_free
from gpu_scheduler.agent.work import Work, WorkTerminal
from gpu_scheduler.wire import agent_pb2 as pb

# --- MIG slices that were destroyed while a job holds them.
#
# What was found and what jobs hold come in; what the server may count on, and who has lost a slice,
# come out. The server counts slices by profile: one that is held and gone stays in the count until
# its job is over, so that all others can be given out, and nobody gets it.

Key = tuple[str, int]
"""Allocation id and member."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice that a job was given; an empty profile is that of an agent that did not write it."""

    uuid: str
    profile: str = ""


Held = Mapping[Key, Mapping[int, Slice]]
"""Slices by work and device."""


def lost_slices(found: NodeInventory, held: Held) -> Iterator[tuple[Key, int, Slice]]:
    """Who holds a slice that is not there, and of which device."""
    there = {device.index: device.mig_uuids for device in found.devices}
    for key, slices in held.items():
        for index, one in slices.items():
            if one.uuid not in there.get(index, ()):
                yield key, index, one


def offered(found: NodeInventory, held: Held) -> NodeInventory:
    """What the server may count on. A device that is gone as a whole stays gone."""
    missing: dict[int, list[Slice]] = {}
    for _, index, one in lost_slices(found, held):
        if one.profile:
            missing.setdefault(index, []).append(one)
    if not missing:
        return found
    devices = tuple(_with(device, missing.get(device.index, [])) for device in found.devices)
    return replace(found, devices=devices)


def _with(device: DetectedDevice, missing: list[Slice]) -> DetectedDevice:
    uuids = {piece.profile: piece.uuids for piece in device.mig_slices}
    for one in sorted(missing, key=lambda one: one.uuid):
        uuids[one.profile] = (*uuids.get(one.profile, ()), one.uuid)
    slices = tuple(DetectedSlice(profile=name, uuids=uuids[name]) for name in sorted(uuids))
    return replace(device, mig_slices=slices)


# --- What the agent has chosen for work that is under way: ports and MIG slices.
#
# Kept in a file until the work is forgotten. An agent that is started again must give the rest of a
# gang the same port, and nobody a slice or a port that somebody holds; what a replica of a service
# had is free as soon as that has ended, also if another agent gave it out.

NAME = "chosen.json"


class Assignments:
    """Ports by allocation, which of them are of services, and slices by work and device."""

    def __init__(self, directory: Path) -> None:
        """Read what an agent before us has chosen."""
        self._file = directory / NAME
        self.ports: dict[str, int] = {}
        self.of_services: set[str] = set()
        self.slices: dict[Key, dict[int, Slice]] = {}
        self._read()

    def set_port(self, allocation_id: str, port: int, *, of_service: bool = False) -> None:
        """All members of an allocation meet there, or its one replica listens there."""
        self.ports[allocation_id] = port
        if of_service:
            self.of_services.add(allocation_id)
        self._write()

    def set_slices(self, key: Key, slices: dict[int, Slice]) -> None:
        """Nobody else gets these."""
        self.slices[key] = slices
        self._write()

    def forget(self, allocation_id: str, member: int) -> None:
        """The work is over for good."""
        port = self.ports.pop(allocation_id, None)
        self.of_services.discard(allocation_id)
        slices = self.slices.pop((allocation_id, member), None)
        if port is not None or slices is not None:
            self._write()

    def free_slices(self, allocation_id: str, member: int) -> bool:
        """Others may have its slices; tells whether it had any."""
        if self.slices.pop((allocation_id, member), None) is None:
            return False
        self._write()
        return True

    def free_port_of_service(self, allocation_id: str) -> None:
        """Others may have its port, if it is that of a replica; a gang's is forgotten with it."""
        if allocation_id in self.of_services:
            self.of_services.discard(allocation_id)
            self.ports.pop(allocation_id, None)
            self._write()

    def keep_only(self, held: Iterable[Key]) -> None:
        """Forget all that was chosen for other work than this."""
        keys = set(held)
        names = {allocation_id for allocation_id, _ in keys}
        before = len(self.ports) + len(self.slices)
        self.ports = {name: port for name, port in self.ports.items() if name in names}
        self.of_services &= names
        self.slices = {key: slices for key, slices in self.slices.items() if key in keys}
        if len(self.ports) + len(self.slices) != before:
            self._write()

    def _read(self) -> None:
        """A file that makes no sense is like none: jobs come first."""
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
        """On a full disk it is only remembered, which is better than no job at all."""
        slices = [
            [*key, [(index, one.uuid) for index, one in held.items()]]
            for key, held in self.slices.items()
        ]
        profiles = {one.uuid: one.profile for held in self.slices.values() for one in held.values()}
        fresh = self._file.with_name(f"{NAME}.new")
        with suppress(OSError):
            services = sorted(self.of_services)
            text = json.dumps(
                {
                    "ports": self.ports,
                    "services": services,
                    "slices": slices,
                    "profiles": profiles,
                }
            )
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self._file)


# --- An order from the server becomes work for the launcher.

NO_ACCOUNT = Account()
_MARK = re.compile("%([jAax%])")


class NoFreeSlice(Exception):
    """What the server gave out is not there; the text says what."""


class PortTaken(Exception):
    """The port that a service asks for is not free on this node."""


class OrderTranslator:
    """Translates orders, with what this node knows: device nodes, MIG slices, free ports."""

    def __init__(self, config: AgentConfig, found: NodeInventory) -> None:
        """Take orders for one node."""
        self._config = config
        self.set_found(found)
        self._chosen = Assignments(Path(config.dir))
        self._told_lost: list[tuple[Key, int, Slice]] = []

    def set_found(self, found: NodeInventory) -> None:
        """What the node has, now that it has changed; work that is under way keeps what it has."""
        self._found = found
        self._devices = {device.index: device for device in found.devices}
        self._adapters = found.fabric.adapters

    def work(self, order: pb.Order, login: Account = NO_ACCOUNT) -> Work:
        """What the launcher needs to run one member; `login` is the account of its user."""
        config, start = self._config, order.start
        scratch = self.scratch_dir(order.allocation_id, order.member)
        held = {device.index: device for device in start.devices}
        slices = self._take_slices(order)
        devices = work_devices(held, self._devices, slices)
        port = self.port_of(order.allocation_id) if self._picks_port(start) else 0
        environment = job_environment(order, login, devices, scratch, port)
        environment = {**self._hints(start, held), **environment}
        service_port = self._service_port(order)
        if service_port:
            environment |= {"PORT": str(service_port), "TGPU_SERVICE_PORT": str(service_port)}
        workdir = start.workdir or home_directory(environment)
        closed = tuple(
            device.path
            for index, device in sorted(self._devices.items())
            if device.path and index not in held
        )
        return Work(
            allocation_id=order.allocation_id,
            member=order.member,
            job_id=start.job_id,
            task=start.task if start.HasField("task") else None,
            attempt=start.attempt,
            name=start.name,
            argv=conda_command(start, environment),
            script=start.script,
            workdir=workdir,
            environment=environment,
            uid=start.uid,
            gid=start.gid,
            user=start.user,
            umask=start.umask,
            runner=start.runner or "process",
            image=start.image,
            mounts=tuple((m.source, m.target, m.read_only) for m in start.mounts),
            devices=devices,
            closed_devices=closed,
            cpu_milli=start.cpu_milli if config.enforce_limits else 0,
            memory_mb=self._memory_limit(start.memory_mb),
            cpus=self._near(held),
            max_processes=self._process_limit(start.max_processes),
            limit_ms=start.limit_ms,
            warn_signal=start.warn_signal,
            warn_before_ms=start.warn_before_ms,
            grace_ms=start.grace_ms if start.HasField("grace_ms") else config.grace_ms,
            # By its own path alone it would be sought where the launcher stands.
            log_path=os.path.join(workdir, _output(start))  # noqa: PTH118
            if start.output
            else self.log_path(start.job_id, order.allocation_id, order.member),
            log_of_user=bool(start.output),
            log_max_bytes=0 if start.output else config.log_max_bytes,
            log_files=config.log_files,
            scratch_dir=scratch,
            prolog=config.prolog,
            epilog=config.epilog,
            hook_timeout_ms=config.hook_timeout_ms,
            start_timeout_ms=config.start_timeout_ms,
            engine_timeout_ms=config.engine_timeout_ms,
            terminal=_terminal(start),
            members_here=int(environment.get("LOCAL_WORLD_SIZE", 1)),
            lease_ms=start.lease_ms,
            prepare_ms=max(1, start.prepare_ms) if start.prepare_only else 0,
            files=rendezvous_files(start.rendezvous) if start.HasField("rendezvous") else {},
        )

    def scratch_dir(self, allocation_id: str, member: int) -> str:
        """The directory that a member shares with the launcher."""
        return f"{self._config.scratch_dir}/{allocation_id}.{member}"

    def log_path(self, job_id: str, allocation_id: str, member: int) -> str:
        """Where the output of a member is kept."""
        return f"{self._config.logs_dir}/{job_id}/{allocation_id}.{member}.log"

    def forget(self, allocation_id: str, member: int) -> None:
        """The work is over for good."""
        self._chosen.forget(allocation_id, member)

    def released(self, allocation_id: str, member: int) -> bool:
        """The work is over, and what it had is free: the next may come before it is forgotten.

        Tells whether it had MIG slices.
        """
        self._chosen.free_port_of_service(allocation_id)
        return self._chosen.free_slices(allocation_id, member)

    def offered(self) -> NodeInventory:
        """What the server may count on: what there is, and slices that are held and gone."""
        return offered(self._found, self._chosen.slices)

    def newly_lost(self) -> list[tuple[Key, int, Slice]]:
        """Work whose MIG slice is not there any more, and of which device that was; each once."""
        lost = list(lost_slices(self._found, self._chosen.slices))
        new = [one for one in lost if one not in self._told_lost]
        self._told_lost = lost
        return new

    def keep_only(self, held: Iterable[tuple[str, int]]) -> None:
        """Nothing but this work is under way."""
        self._chosen.keep_only(held)

    def _memory_limit(self, asked_mb: int) -> int:
        return (asked_mb or self._config.default_memory_mb) if self._config.enforce_limits else 0

    def _process_limit(self, asked: int) -> int:
        most = self._config.most_processes if self._config.enforce_limits else 0
        return min(asked, most) if asked and most else asked or most

    def _near(self, held: dict[int, pb.HeldDevice]) -> tuple[int, ...]:
        """The CPUs near the devices, if the topology is known for all of them."""
        near: set[int] = set()
        for index in held:
            device = self._devices.get(index)
            if device is None or not device.cpus:
                return ()
            near.update(device.cpus)
        return tuple(sorted(near))

    def port_of(self, allocation_id: str) -> int:
        """A port that was free a moment ago, the same one for all members of an allocation."""
        port = self._chosen.ports.get(allocation_id)
        if port is None:
            port = free_port(self._chosen.ports.values())
            self._chosen.set_port(allocation_id, port)
        return port

    def _picks_port(self, start: pb.Start) -> bool:
        """Tell whether a port is to be chosen here: by the first, and by a gang on one node."""
        return start.HasField("rendezvous") and (
            start.rendezvous.rank == 0 or not start.prepare_only
        )

    def _hints(self, start: pb.Start, held: Iterable[int]) -> dict[str, str]:
        """What NCCL should use to reach other nodes."""
        if not start.prepare_only:
            return {}
        near = [self._devices[index].numa_node for index in held if index in self._devices]
        return nccl_hints(self._adapters, near, interface_of(self._config.address))

    def _service_port(self, order: pb.Order) -> int:
        """The port of a replica: the one that was asked for, or one that nobody has."""
        start = order.start
        if not start.port and not start.pick_port:
            return 0
        port = self._chosen.ports.get(order.allocation_id)
        if port is None:
            taken = set(self._chosen.ports.values())
            port = free_port(taken) if start.pick_port else start.port
            if port in taken or not is_free(port):
                raise PortTaken(f"port {port} is in use on this node")
            self._chosen.set_port(order.allocation_id, port, of_service=True)
        return port

    def _take_slices(self, order: pb.Order) -> dict[int, str]:
        """MIG slices of the right profile that no other work holds, by device."""
        key = (order.allocation_id, order.member)
        slices_of = self._chosen.slices
        if key in slices_of:
            return {index: one.uuid for index, one in slices_of[key].items()}
        taken = {one.uuid for slices in slices_of.values() for one in slices.values()}
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
            self._chosen.set_slices(key, mine)
        return {index: one.uuid for index, one in mine.items()}


def _output(start: pb.Start) -> str:
    """The file that a job writes to, with its id, task and name where marks as Slurm's stand."""
    number = start.job_id.removeprefix("job-")
    task = str(start.task) if start.HasField("task") else ""
    marks = {
        "j": f"{number}_{task}" if task else number,
        "A": number,
        "a": task or "0",
        "x": start.name.replace("/", "_"),
        "%": "%",
    }
    return _MARK.sub(lambda mark: marks[mark[1]], start.output)


def _terminal(start: pb.Start) -> WorkTerminal | None:
    if not start.HasField("terminal"):
        return None
    terminal = start.terminal
    return WorkTerminal(
        rows=terminal.rows,
        columns=terminal.columns,
        idle_ms=terminal.idle_ms,
        attach_within_ms=terminal.attach_within_ms,
        keep=terminal.keep,
    )
