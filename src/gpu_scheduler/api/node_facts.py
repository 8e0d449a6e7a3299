"""What a node says, as the core hears it: readings of devices, and ends of members."""

from __future__ import annotations

from gpu_scheduler.control.members import GANG, MemberEnd
from gpu_scheduler.control.messages import DeviceRead
from gpu_scheduler.control.stopping import (
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    LEASE,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
)
from gpu_scheduler.model.readings import DeviceReading
from gpu_scheduler.wire import agent_pb2 as pb

GROUNDS = frozenset(
    {TIMEOUT, GANG, PREEMPTED, CANCELLED, NOT_BEGUN, NODE_LOST, GPU_MEMORY, GPU_IDLE, LEASE}
)
"""Why a node may say that it stopped something; other words are not ours."""
LEASE_ENDED = "its node stopped it, as nobody had renewed its lease in time"


def member_end(fact: pb.Fact, now_ms: int) -> MemberEnd:
    """How a member ended, as its node tells it now."""
    over = fact.over
    detail = over.detail
    if over.stopped_by == LEASE:
        detail = "; ".join(filter(None, (LEASE_ENDED, detail)))
    return MemberEnd(
        exit_code=over.exit_code if over.HasField("exit_code") else None,
        signal=over.signal if over.HasField("signal") else None,
        ran=over.ran,
        stopped_by=over.stopped_by if over.stopped_by in GROUNDS else "",
        detail=detail,
        at_ms=fact.at_ms,
        ended_ms=now_ms - over.ago_ms if _is_known(over) else None,
        run_ms=over.run_ms,
        prolog_failed=over.prolog_failed,
        epilog_failed=over.epilog_failed,
        is_told=True,
    )


def _is_known(over: pb.Over) -> bool:
    """Tell whether its node saw the end. One that only found it over knows no time that counts."""
    return not over.ran or over.HasField("exit_code") or over.HasField("signal")


def device_read(reading: DeviceReading, trusted: int) -> DeviceRead:
    """What the core is told of one device; what was not measured is None.

    `trusted` is the mark of the last order to trust it that its node has carried out.
    """
    return DeviceRead(
        index=reading.index,
        temperature_c=reading.temperature_c,
        healthy=reading.healthy,
        why=reading.why,
        xid=reading.xid,
        load_percent=reading.load_percent,
        utilisation_percent=(None if reading.load_percent is None else reading.utilisation_percent),
        memory_used_mb=reading.memory_used_mb,
        power_mw=reading.power_mw if reading.power_known else None,
        processes=reading.processes,
        unexplained_mb=reading.unexplained_mb,
        trusted=trusted,
    )
