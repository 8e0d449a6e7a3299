"""Converts the agent's values (reports, inventory, readings) to protobuf messages."""

from __future__ import annotations

from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.work import Began, Over, Prepared, Report, Saved
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb


def fact_from(report: Report, now_ms: int) -> pb.Fact:
    """The message for a report; `now_ms` is the node's clock, for the age of the report."""
    fact = pb.Fact(at_ms=report.at_ms, allocation_id=report.allocation_id, member=report.member)
    if isinstance(report, Prepared):
        fact.prepared.CopyFrom(pb.Prepared(port=report.port))
    elif isinstance(report, Began):
        fact.began.CopyFrom(pb.Began(pid=report.pid))
    elif isinstance(report, Over):
        fact.over.CopyFrom(
            pb.Over(
                exit_code=report.exit_code,
                signal=report.signal,
                ran=report.ran,
                run_ms=report.run_ms,
                stopped_by=report.stopped_by,
                detail=report.detail,
                prolog_failed=report.prolog_failed,
                epilog_failed=report.epilog_failed,
                ago_ms=max(0, now_ms - report.at_ms),
            )
        )
    else:
        fact.saved.CopyFrom(pb.Saved(ago_ms=max(0, now_ms - report.at_ms)))
    return fact


def add_report(known: list[Report], report: Report) -> bool:
    """Add a report to those of a member, in the order to send them; True if it is new.

    Each kind of report occurs once; of checkpoint reports (`Saved`) only the newest is kept.
    """
    last = next((old for old in known if type(old) is type(report)), None)
    if last is not None:
        if not isinstance(report, Saved) or report.at_ms <= last.at_ms:
            return False
        known.remove(last)
    known.append(report)
    known.sort(key=lambda one: isinstance(one, Over))
    return True


def reports_to_repeat(reports: list[Report]) -> list[Report]:
    """The reports for a server that may know none of them; `Prepared` is obsolete after a start."""
    has_started = any(not isinstance(report, Prepared) for report in reports)
    return [report for report in reports if not (has_started and isinstance(report, Prepared))]


def inventory_of(found: NodeInventory, unfit: str = "") -> pb.Inventory:
    """The message for an inventory; `unfit` says why no job can start on the node now."""
    return pb.Inventory(
        cpu_milli=found.cpu_milli,
        memory_mb=found.memory_mb,
        labels=dict(found.labels),
        rack=found.rack,
        numa_nodes=found.fabric.numa_nodes,
        direct_storage=found.fabric.direct_storage,
        adapters=[
            pb.Adapter(
                name=adapter.name,
                port=adapter.port,
                link=adapter.link,
                rate_gbps=adapter.rate_gbps,
                numa_node=adapter.numa_node,
                active=adapter.active,
            )
            for adapter in found.fabric.adapters
        ],
        detection=found.detection,
        problem=found.problem,
        unfit=unfit,
        devices=[
            pb.Device(
                index=device.index,
                uuid=device.uuid,
                model=device.model,
                memory_mb=device.memory_mb,
                island=device.island,
                bandwidth_gbps=device.bandwidth_gbps,
                pci_bus_id=device.pci_bus_id,
                path=device.path,
                numa_node=device.numa_node,
                mig_slices=[
                    pb.MigSlice(profile=piece.profile, count=len(piece.uuids), uuids=piece.uuids)
                    for piece in device.mig_slices
                ],
            )
            for device in found.devices
        ],
    )


def lost_slice_message(node: str, index: int, profile: str) -> str:
    """The warning for a job whose MIG slice was destroyed, in the words of a lost GPU."""
    return (
        f"GPU {index} of {node} cannot be trusted any more: its MIG slice {profile} is not there "
        "any more"
    ).replace("  ", " ")


def telemetry_of(telemetry: NodeReadings) -> pb.Telemetry:
    """The message for one reading of all devices."""
    return pb.Telemetry(
        at_ms=telemetry.at_ms,
        problem=telemetry.problem,
        readings=[
            pb.DeviceReading(
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
                load_percent=reading.load_percent,
                power_known=reading.power_known,
                why=reading.why,
                unexplained_mb=reading.unexplained_mb,
                trusted=reading.trusted,
                processes=[
                    pb.DeviceProcess(
                        pid=process.pid,
                        user=process.user,
                        command=process.command,
                        memory_mb=process.memory_mb,
                        allocation_id=process.allocation_id,
                        load_percent=process.load_percent,
                    )
                    for process in reading.processes
                ],
            )
            for reading in telemetry.readings
        ],
    )
