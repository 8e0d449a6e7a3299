"""Health: healthy, degraded (works in part) or unhealthy, with findings and remedies.

The findings about the cluster are made here; those about the server process come from
`ApiSettings.vitals`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from gpu_scheduler.api.auth.peer_credentials import peer_in
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.routes.cluster import node_resources
from gpu_scheduler.control.self_monitoring import DEGRADED, HEALTHY, UNHEALTHY, HealthFinding
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import SchedulerError, StoreUnavailable
from gpu_scheduler.model.job import display_name
from gpu_scheduler.model.node import Device, NodeState, device_problem
from gpu_scheduler.model.node import Health as DeviceHealth


class StandbyForm(Struct):
    """A standby server. `seen_seconds_ago` is the age of its last heartbeat."""

    name: str
    address: str
    version: str
    seen_seconds_ago: float


class LeadershipForm(Struct):
    """The role of this server (leader, standby, or `unsure` whether it still leads) and the leader.

    `leader` is empty if there is none.
    """

    role: str
    name: str
    term: int
    leader: str
    leader_address: str
    standbys: list[StandbyForm]
    trouble: str = ""


class HealthReason(Struct):
    """A failed check: its name, severity, finding and remedy."""

    check: str
    status: str
    detail: str
    remedy: str


class Health(Struct):
    """healthy, degraded (works, but not all of it) or unhealthy; `reasons` has the worst first."""

    status: str
    version: str
    uptime_seconds: float
    checks: dict[str, str]
    reasons: list[HealthReason] = []
    leadership: LeadershipForm | None = None


CHECKS = ("store", "disk", "nodes", "gpus", "queue", "notifications", "clock", "logs")
MOST_READ_S = 5.0
"""The database has failed if it does not answer within this time."""
NEARLY_FULL = 0.9
BACKLOG_MS = 15 * 60_000
"""A notification that waits longer is reported as a backlog."""
MOST_LISTED = 3


_PUBLIC: dict[str, Any] = {
    "response": Health,
    "errors": (503,),
    "public": True,
    "public_everywhere": True,
}
router = Router("cluster")


@router.operation("GET", "/health", prefix="", name="plain_health", **_PUBLIC)
@router.operation("GET", "/health", **_PUBLIC)
async def health(context: Context, request: Request) -> Response:
    """The health: healthy, degraded or unhealthy (503), and why."""
    context.parse_query(request)
    found = list(findings(context, await read_error(context)))
    status = worst(found)
    code = 503 if status == UNHEALTHY else 200
    if not peer_in(request.scope).local:
        # Unauthenticated callers from other machines see only the status.
        return json_response(
            Health(status=status, version="", uptime_seconds=0, checks={}), status=code
        )
    checks = dict.fromkeys(CHECKS, "ok")
    if context.settings.leadership is not None:
        checks["leadership"] = "ok"
    for finding in found:
        text = checks[finding.check]
        checks[finding.check] = finding.detail if text == "ok" else f"{text}; {finding.detail}"
    if context.settings.warnings:
        checks["settings"] = "; ".join(context.settings.warnings)
    form = Health(
        status=status,
        version=context.settings.version,
        uptime_seconds=round(time.monotonic() - context.started, 3),
        checks=checks,
        reasons=[
            HealthReason(one.check, one.status, one.detail, one.remedy)
            for one in sorted(found, key=lambda one: one.status != UNHEALTHY)
        ],
        leadership=_leadership(context),
    )
    return json_response(form, status=code)


def worst(found: Sequence[HealthFinding]) -> str:
    """Return the worst status of all findings."""
    statuses = {finding.status for finding in found}
    return next((status for status in (UNHEALTHY, DEGRADED) if status in statuses), HEALTHY)


async def read_error(context: Context) -> SchedulerError | None:
    """Try to read the store, in a thread; return the error."""
    try:
        async with asyncio.timeout(MOST_READ_S):
            await asyncio.to_thread(context.service.store.last_event)
    except SchedulerError as error:
        return error
    except TimeoutError:
        return StoreUnavailable(f"the database did not answer within {MOST_READ_S:g} s")
    return None


def findings(context: Context, error: SchedulerError | None) -> Iterator[HealthFinding]:
    """Yield all findings; `error` is that of the last read of the store."""
    yield from _store(context, error)
    yield from _lead(context)
    nodes = node_resources(context)
    yield from _nodes(nodes)
    yield from _leftovers(context, nodes)
    yield from _gpus(context, nodes)
    yield from _queue(context)
    yield from _notifications(context)
    if context.settings.vitals is not None:
        yield from context.settings.vitals()


def _store(context: Context, error: SchedulerError | None) -> Iterator[HealthFinding]:
    if error is not None:
        if away := context.service.away:
            yield HealthFinding(
                "store",
                DEGRADED,
                away,
                "restore the database; until then requests are rejected and running jobs "
                "continue. No acknowledged change is lost, and the server recovers by itself",
            )
            return
        yield HealthFinding(
            "store",
            UNHEALTHY,
            f"the database cannot be read ({error.code})",
            "see the server's log, and docs/reference/database.md for what to do",
        )
        return
    if context.service.trouble:
        yield HealthFinding(
            "store",
            DEGRADED,
            f"changes cannot be written: {context.service.trouble}",
            "free space on the disk of the state directory; no acknowledged change is lost, and "
            "the server recovers by itself",
        )


def _leadership(context: Context) -> LeadershipForm | None:
    leadership = context.settings.leadership
    if leadership is None:
        return None
    lead = leadership.lead
    role = "standby"
    if leadership.term:
        role = "leader" if leadership.is_held else "unsure"
    return LeadershipForm(
        role=role,
        name=leadership.me.name,
        term=lead.term,
        leader=lead.holder if lead.is_held else "",
        leader_address=lead.address if lead.is_held else "",
        standbys=[
            StandbyForm(one.name, one.address, one.version, round(max(0.0, one.seen_s), 1))
            for one in lead.standbys
            if one.name != lead.holder or not lead.is_held
        ],
        trouble=leadership.trouble,
    )


def _lead(context: Context) -> Iterator[HealthFinding]:
    """Report that no leader is known, or that the leadership is uncertain."""
    leadership = context.settings.leadership
    if leadership is None:
        return
    if not leadership.lead.is_held:
        why = leadership.trouble or "no server has become leader yet"
        yield HealthFinding(
            "leadership",
            DEGRADED,
            f"no leader is known: {why}",
            "no job starts until there is one, and running jobs continue; check the database",
        )
    elif leadership.trouble:
        yield HealthFinding(
            "leadership", DEGRADED, leadership.trouble, "check the database; the server tries again"
        )


def _nodes(nodes: list[NodeResources]) -> Iterator[HealthFinding]:
    remedy = (
        "on that machine, look at agent/agent.log in the state directory; the server restarts its "
        "own agent by itself, and running jobs continue"
    )
    lost = [
        resources.node.id for resources in nodes if resources.node.state is not NodeState.ONLINE
    ]
    if not nodes:
        remedy = (
            "none has joined yet: create a token with 'tgpu node token create', and start 'tgpu "
            "agent' with it on each machine"
        )
    if len(lost) == len(nodes):
        yield HealthFinding("nodes", DEGRADED, "no node is online", remedy)
    elif lost:
        online = len(nodes) - len(lost)
        detail = f"{online} of {len(nodes)} nodes are online; down: {', '.join(lost[:MOST_LISTED])}"
        yield HealthFinding("nodes", DEGRADED, detail, remedy)
    yield from _closed_by_hooks(nodes)


def _closed_by_hooks(nodes: list[NodeResources]) -> Iterator[HealthFinding]:
    """Report nodes that a failed hook has closed; its output may be for admins only."""
    faulty = [
        resources.node.id
        for resources in nodes
        if resources.node.closed and resources.node.closed.is_fault
    ]
    for node_id in faulty[:MOST_LISTED]:
        yield HealthFinding(
            "nodes",
            DEGRADED,
            f"node {node_id} was set aside because a prolog or epilog failed there",
            f"'tgpu nodes show {node_id}' shows the error; fix it, then open the node again "
            f"with 'tgpu nodes uncordon {node_id}'",
        )
    if len(faulty) > MOST_LISTED:
        more = f"{len(faulty) - MOST_LISTED} further nodes were set aside"
        yield HealthFinding("nodes", DEGRADED, more, "'tgpu nodes' shows all of them")


def _leftovers(context: Context, nodes: list[NodeResources]) -> Iterator[HealthFinding]:
    """Report scratch directories that could not be removed."""
    known = context.service.loop_metrics.files
    left = {
        resources.node.id: known[resources.node.id].leftovers
        for resources in nodes
        if resources.node.id in known and known[resources.node.id].leftovers
    }
    for node_id, count in list(left.items())[:MOST_LISTED]:
        yield HealthFinding(
            "nodes",
            DEGRADED,
            f"{count} scratch directories could not be removed on node {node_id}",
            "launcher.log in the agent's directory names them and the error; remove them by hand. "
            "The launcher tries again, and a user with 1,000 of them starts no more jobs there",
        )


def _gpus(context: Context, nodes: list[NodeResources]) -> Iterator[HealthFinding]:
    for node_id, readings in sorted(context.service.telemetry.items()):
        if readings.problem:
            yield HealthFinding(
                "gpus",
                DEGRADED,
                readings.problem if len(nodes) == 1 else f"{node_id}: {readings.problem}",
                "run nvidia-smi there; if that hangs or fails, the driver needs a restart. Until "
                "then the last known state of the GPUs is used",
            )
    failed = [
        (device, f"GPU {device.index} of {resources.node.id}: {device_problem(device)}")
        for resources in nodes
        for device in resources.node.devices
        if _needs_attention(device)
    ]
    for device, detail in failed[:MOST_LISTED]:
        yield HealthFinding("gpus", DEGRADED, detail, _remedy_of(device))
    if len(failed) > MOST_LISTED:
        more = f"{len(failed) - MOST_LISTED} further GPUs have problems"
        yield HealthFinding("gpus", DEGRADED, more, "'tgpu gpus' shows all of them")


def _needs_attention(device: Device) -> bool:
    """Whether an admin should look at it; foreign processes and heat end by themselves."""
    is_leaking = device.foreign is not None and device.foreign.leaked
    return device.health is not DeviceHealth.HEALTHY or device.quarantined or is_leaking


def _remedy_of(device: Device) -> str:
    index = device.index
    if device.health is not DeviceHealth.HEALTHY:
        return (
            f"look for XID or ECC errors with 'nvidia-smi -q -i {index}' and dmesg; it is used "
            f"again when the driver reports it healthy, or after 'tgpu resume-gpu {index}'"
        )
    if device.quarantined:
        return (
            "several different jobs failed on it at once; check their logs, then use it again "
            f"with 'tgpu resume-gpu {index}'"
        )
    pid = device.foreign.pid if device.foreign is not None else 0
    end_it = f"end process {pid}" if pid else f"reset it with 'nvidia-smi --gpu-reset -i {index}'"
    return f"{end_it}; it is allocated again as soon as its memory is free"


def _queue(context: Context) -> Iterator[HealthFinding]:
    state = context.state
    if trouble := context.service.cycle_trouble:
        yield HealthFinding(
            "queue",
            DEGRADED,
            f"no job is started: the scheduling cycle fails ({trouble})",
            "the log has the trace; report it. Running jobs, commands and reports go on, and the "
            "server tries again by itself",
        )
    if aside := state.sweep.set_aside:
        listed = ", ".join(display_name(job_id) for job_id in list(aside)[:MOST_LISTED])
        more = f" and {len(aside) - MOST_LISTED} more" if len(aside) > MOST_LISTED else ""
        yield HealthFinding(
            "queue",
            DEGRADED,
            f"{len(aside)} queued jobs were set aside, since the engine fails with them: {listed}"
            f"{more} ({next(iter(aside.values()))})",
            "the log has the trace; report it. `tgpu release JOB` tries a job again, `tgpu cancel "
            "JOB` removes it",
        )
    most = state.limits.max_queued_tasks
    if state.queued_tasks >= most:
        yield HealthFinding(
            "queue",
            DEGRADED,
            f"the queue is full: {state.queued_tasks:,} tasks wait",
            "submissions are rejected until some have started; cancel what is not needed, or raise "
            "scheduler.max_queue_size",
        )
    elif state.queued_tasks >= NEARLY_FULL * most:
        yield HealthFinding(
            "queue",
            DEGRADED,
            f"the queue is nearly full: {state.queued_tasks:,} of {most:,} tasks",
            "beyond that submissions are rejected; cancel what is not needed, or raise "
            "scheduler.max_queue_size",
        )


def _notifications(context: Context) -> Iterator[HealthFinding]:
    notifications = context.settings.notifications
    if notifications is None:
        return
    now_ms = context.service.now_ms()
    for name, lane in notifications.lanes.items():
        oldest_ms = lane.oldest_ms
        if oldest_ms is not None and now_ms - oldest_ms > BACKLOG_MS:
            minutes = (now_ms - oldest_ms) // 60_000
            yield HealthFinding(
                "notifications",
                DEGRADED,
                f"{len(lane.waiting):,} notifications wait for {name}, for up to {minutes} minutes",
                f"'tgpu notify' shows the last error, 'tgpu notify test {name}' tries it now",
            )
