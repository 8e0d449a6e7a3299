"""Conversion between the model and the protobuf messages of agents: orders, inventory, readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings
from gpu_scheduler.model.names import clean_text
from gpu_scheduler.model.node import Device, DeviceMode
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.model.request import ONE_CORE_MILLI
from gpu_scheduler.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SESSION_METHOD = "/gpu_scheduler.v1.AgentService/Session"
AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyValue = TypeVar("AnyValue", bound="DataclassInstance")


def start_order(
    allocation: Allocation,
    placement: Placement,
    job: Job,
    launch: Launch,
    captured: dict[str, str] | None,
    limit_ms: int,
    *,
    image_digest: str = "",
) -> pb.Order:
    """Return the order to start one member."""
    is_service = bool(job.service)
    start = message_of(
        pb.Start,
        launch,
        job_id=job.id,
        task=allocation.task,
        attempt=allocation.attempt,
        name=job.name,
        environment={**(captured or {}), **dict(launch.environment)},
        captured=captured is not None,
        runner=launch.runner.value,
        mounts=[message_of(pb.Mount, mount) for mount in launch.mounts],
        devices=[message_of(pb.HeldDevice, share) for share in placement.devices],
        cpu_milli=_cpu_limit_milli(placement, launch),
        memory_mb=placement.memory_mb,
        terminal=message_of(pb.Terminal, launch.terminal)
        if launch.runner is Runner.TERMINAL
        else None,
        lease_ms=placement.lease_ms,
        # A replica of a service has no time limit, a port and perhaps a readiness probe.
        limit_ms=0 if is_service else limit_ms,
        image_digest=image_digest,
        port=job.port if is_service else 0,
        pick_port=is_service and not job.port,
        probe=message_of(pb.Probe, launch.probe, kind=launch.probe.kind.value, port=job.port)
        if is_service and launch.probe is not None
        else None,
    )
    if job.is_gang:
        start.rendezvous.CopyFrom(rendezvous_of(allocation, placement))
    return pb.Order(allocation_id=allocation.id, member=placement.member, start=start)


def _cpu_limit_milli(placement: Placement, launch: Launch) -> int:
    """Return the CPU limit of a member; 0 means no limit."""
    is_only_counted = not launch.limits_cpu and placement.cpu_milli == ONE_CORE_MILLI
    return 0 if is_only_counted else placement.cpu_milli


def rendezvous_of(
    allocation: Allocation, placement: Placement, hosts: Sequence[str] = (), port: int = 0
) -> pb.Rendezvous:
    """Return the rendezvous of a member: ranks by member number, the first member's node as master.

    Without `hosts`, the names of the nodes are used.
    """
    members = allocation.by_rank
    names = list(hosts) or [member.node_id for member in members]
    return pb.Rendezvous(
        rank=members.index(placement),
        world_size=len(members),
        master_address=names[0],
        master_port=port,
        hosts=names,
        gpus=[len(member.devices) for member in members],
        nodes=[member.node_id for member in members],
    )


def commit_order(allocation: Allocation, placement: Placement) -> pb.Order:
    """Return the order that lets a prepared member run, with the rendezvous of its gang."""
    meeting = allocation.rendezvous
    if meeting is None:
        raise InternalError(f"allocation {allocation.id} was not committed")
    rendezvous = rendezvous_of(allocation, placement, meeting.hosts, meeting.port)
    return pb.Order(
        allocation_id=allocation.id,
        member=placement.member,
        commit=pb.Commit(rendezvous=rendezvous),
    )


def stop_order(allocation_id: str, member: int, why: str) -> pb.Order:
    """Return the order to stop a member, or not to start it."""
    return pb.Order(allocation_id=allocation_id, member=member, stop=pb.Stop(why=why))


def warn_order(allocation_id: str, member: int, text: str) -> pb.Order:
    """Return the order to show a warning to a member."""
    return pb.Order(allocation_id=allocation_id, member=member, warn=pb.Warn(text=text))


def forget_order(allocation_id: str, member: int) -> pb.Order:
    """Return the order to drop the stored end of a member, which the server has committed."""
    return pb.Order(allocation_id=allocation_id, member=member, forget=pb.Forget())


def devices_of(inventory: pb.Inventory) -> tuple[Device, ...]:
    """Return the devices that an agent found."""
    return tuple(
        value_of(
            Device,
            device,
            uuid=clean_text(device.uuid),
            model=clean_text(device.model),
            mode=DeviceMode.MIG if device.mig_slices else DeviceMode.WHOLE,
            mig_slices=tuple(
                (clean_text(piece.profile), piece.count) for piece in device.mig_slices
            ),
        )
        for device in inventory.devices
    )


def readings_of(telemetry: pb.Telemetry) -> NodeReadings:
    """Return the readings that an agent sent."""
    return NodeReadings(
        at_ms=telemetry.at_ms,
        problem=telemetry.problem,
        readings=tuple(
            value_of(
                DeviceReading,
                reading,
                processes=tuple(value_of(DeviceProcess, process) for process in reading.processes),
            )
            for reading in telemetry.readings
        ),
    )


# Values and messages with fields of the same names


def message_of(kind: type[AnyMessage], value: DataclassInstance, /, **given: Any) -> AnyMessage:
    """Return the message with the fields that are `given`, and those that `value` has too."""
    for name in _shared_fields(type(value), kind.DESCRIPTOR):
        if name not in given:
            given[name] = getattr(value, name)
    return kind(**given)


def value_of(kind: type[AnyValue], message: Message, /, **given: Any) -> AnyValue:
    """Return the value with the fields that are `given`, and those that `message` has too.

    An optional field of the message that is not set becomes None.
    """
    for name, is_optional in _shared_fields(kind, message.DESCRIPTOR).items():
        if name not in given:
            is_set = not is_optional or message.HasField(name)
            given[name] = getattr(message, name) if is_set else None
    return kind(**given)


@cache
def _shared_fields(value: type[DataclassInstance], message: Descriptor) -> dict[str, bool]:
    """Return the fields of a dataclass that a message has too, and whether they are optional."""
    known = message.fields_by_name
    return {
        field.name: known[field.name].has_presence for field in fields(value) if field.name in known
    }
