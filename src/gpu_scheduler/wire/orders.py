"""Conversion between the model and the protobuf messages of agents: orders, inventory, readings."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings
from gpu_scheduler.model.node import Device, DeviceMode
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.model.request import ONE_CORE_MILLI
from gpu_scheduler.wire import agent_pb2 as pb

SESSION_METHOD = "/gpu_scheduler.v1.AgentService/Session"


def start_order(
    allocation: Allocation,
    placement: Placement,
    job: Job,
    launch: Launch,
    captured: dict[str, str] | None,
    limit_ms: int,
) -> pb.Order:
    """Return the order to start one member."""
    environment = {**(captured or {}), **dict(launch.environment)}
    start = pb.Start(
        job_id=job.id,
        task=allocation.task,
        attempt=allocation.attempt,
        name=job.name,
        argv=launch.argv,
        script=launch.script,
        workdir=launch.workdir,
        environment=environment,
        captured=captured is not None,
        uid=launch.uid,
        gid=launch.gid,
        user=launch.user,
        umask=launch.umask,
        runner=launch.runner.value,
        image=launch.image,
        mounts=[
            pb.Mount(source=mount.source, target=mount.target, read_only=mount.read_only)
            for mount in launch.mounts
        ],
        conda=launch.conda,
        conda_exe=launch.conda_exe,
        output=launch.output,
        devices=[
            pb.HeldDevice(
                index=share.index,
                share_milli=share.share_milli,
                memory_mb=share.memory_mb,
                mig_profile=share.mig_profile,
            )
            for share in placement.devices
        ],
        cpu_milli=_cpu_limit_milli(placement, launch),
        memory_mb=placement.memory_mb,
        max_processes=launch.max_processes,
        terminal=_terminal(launch),
        limit_ms=limit_ms,
        warn_signal=launch.warn_signal,
        warn_before_ms=launch.warn_before_ms,
        grace_ms=launch.grace_ms,
        lease_ms=placement.lease_ms,
    )
    if job.service:
        _add_service(start, job, launch)
    if job.is_gang:
        start.rendezvous.CopyFrom(rendezvous_of(allocation, placement))
    return pb.Order(allocation_id=allocation.id, member=placement.member, start=start)


def _cpu_limit_milli(placement: Placement, launch: Launch) -> int:
    """Return the CPU limit of a member; 0 means no limit."""
    is_only_counted = not launch.limits_cpu and placement.cpu_milli == ONE_CORE_MILLI
    return 0 if is_only_counted else placement.cpu_milli


def _add_service(start: pb.Start, job: Job, launch: Launch) -> None:
    """Add what a replica of a service needs: no time limit, a port, a readiness probe."""
    start.limit_ms = 0
    start.port = job.port
    start.pick_port = not job.port
    probe = launch.probe
    if probe is not None:
        start.probe.CopyFrom(
            pb.Probe(
                kind=probe.kind.value,
                path=probe.path,
                argv=probe.argv,
                port=job.port,
                interval_ms=probe.interval_ms,
                timeout_ms=probe.timeout_ms,
                failures=probe.failures,
                grace_ms=probe.grace_ms,
            )
        )


def _terminal(launch: Launch) -> pb.Terminal | None:
    if launch.runner is not Runner.TERMINAL:
        return None
    terminal = launch.terminal
    return pb.Terminal(
        rows=terminal.rows,
        columns=terminal.columns,
        idle_ms=terminal.idle_ms,
        attach_within_ms=terminal.attach_within_ms,
        keep=terminal.keep,
    )


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
        Device(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mb=device.memory_mb,
            island=device.island,
            bandwidth_gbps=device.bandwidth_gbps,
            mode=DeviceMode.MIG if device.mig_slices else DeviceMode.WHOLE,
            mig_slices=tuple((piece.profile, piece.count) for piece in device.mig_slices),
        )
        for device in inventory.devices
    )


def readings_of(telemetry: pb.Telemetry) -> NodeReadings:
    """Return the readings that an agent sent."""
    return NodeReadings(
        at_ms=telemetry.at_ms,
        problem=telemetry.problem,
        readings=tuple(
            DeviceReading(
                index=reading.index,
                utilisation_percent=reading.utilisation_percent,
                memory_used_mb=reading.memory_used_mb,
                temperature_c=reading.temperature_c,
                power_mw=reading.power_mw,
                power_limit_mw=reading.power_limit_mw,
                sm_clock_mhz=reading.sm_clock_mhz,
                throttle_reasons=reading.throttle_reasons,
                ecc_errors=reading.ecc_errors,
                xid=reading.xid,
                healthy=reading.healthy,
                load_percent=reading.load_percent if reading.HasField("load_percent") else None,
                power_known=reading.power_known,
                why=reading.why,
                unexplained_mb=reading.unexplained_mb,
                trusted=reading.trusted,
                processes=tuple(
                    DeviceProcess(
                        pid=process.pid,
                        user=process.user,
                        command=process.command,
                        memory_mb=process.memory_mb,
                        allocation_id=process.allocation_id,
                        load_percent=(
                            process.load_percent if process.HasField("load_percent") else None
                        ),
                    )
                    for process in reading.processes
                ),
            )
            for reading in telemetry.readings
        ),
    )
