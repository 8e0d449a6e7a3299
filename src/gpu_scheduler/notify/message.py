"""What is said: an event and what is known of its job become one sentence and some facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.notification import Notice
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.store.rows import AttemptRow, EventRow, JobRow
from gpu_scheduler.wire.times import write_time

_LONGEST_NAME = 80
_TROUBLE = {
    "gpu_unhealthy": "GPU {gpu} of {node} is unhealthy and gets no new work",
    "gpu_quarantined": "GPU {gpu} of {node} was set aside: jobs kept dying on it at once",
    "gpu_leak": "GPU {gpu} of {node} is not free although its job has ended",
    "node_silent": "nothing is heard of node {node} any more",
    "node_set_aside": "node {node} was set aside and gets no new work: {reason}",
}
_OF_WARNINGS = ("minutes", "used_mb", "given_mb", "service", "replica", "restarts")
TROUBLE = frozenset(_TROUBLE)
"""Events about the machine that somebody should look at."""


def of_job(
    notice: Notice,
    event: EventRow,
    row: JobRow,
    attempt: AttemptRow | None,
    placements: Sequence[Placement],
) -> dict[str, Any]:
    """About a job."""
    job = row.job
    run_ms = attempt.end_ms - attempt.start_ms if attempt is not None else None
    is_end = notice in (Notice.END, Notice.FAIL)
    said = said_of_job(notice, event, row, run_ms if is_end else None, placements)
    return {
        "text": said,
        "event": notice.value,
        "at": write_time(event.at_ms),
        "job_id": job.id,
        "job_name": job.name,
        "user": job.user,
        "tenant": job.tenant,
        "state": event.kind,
        "reason": row.reason if is_end else "",
        "exit_code": row.exit_code if is_end else None,
        "signal": row.signal if is_end else None,
        "attempt": row.attempt,
        "wait_seconds": row.waited_ms / 1000,
        "run_seconds": None if run_ms is None or not is_end else run_ms / 1000,
        "gpu_count": job.gpu_milli / 1000,
        "nodes": sorted({placement.node_id for placement in placements}),
        "gpus": sorted({share.index for place in placements for share in place.devices}),
    } | {name: value for name, value in event.data if name in _OF_WARNINGS}


def said_of_job(
    notice: Notice,
    event: EventRow,
    row: JobRow,
    run_ms: int | None,
    placements: Sequence[Placement],
) -> str:
    """The sentence about a job."""
    job = row.job
    name = "".join(char if char.isprintable() else " " for char in job.name)[:_LONGEST_NAME]
    who = f"{job.id}{f' ({name})' if name else ''} of {job.user}"
    if notice is Notice.START:
        return f"{who} started{_place(placements)} after {spell(row.waited_ms)} in the queue"
    if notice is Notice.PREEMPTED:
        return f"{who} was stopped for another job and waits again"
    if notice in (Notice.NOT_READY, Notice.RESTART):
        return said_of_replica(notice, event, job.user)
    if notice in (Notice.IDLE, Notice.MEMORY):
        return f"{who}: {dict(event.data).get('text') or event.kind}"
    after = "" if run_ms is None else f" after {spell(run_ms)}"
    if event.kind == JobState.FAILED.value:
        how = f" with exit code {row.exit_code}" if row.exit_code else ""
        how = f" by signal {row.signal}" if row.signal else how
        why = f": {row.reason}" if row.reason else ""
        return f"{who} failed{how}{after}{why}"
    return f"{who} was cancelled{after}" if event.kind == "cancelled" else f"{who} completed{after}"


def said_of_replica(notice: Notice, event: EventRow, user: str) -> str:
    """The sentence about a replica of a service."""
    data = dict(event.data)
    who = f"replica {data.get('replica', '?')} of service {data.get('name', '?')} of {user}"
    why = f": {data['detail']}" if data.get("detail") else ""
    if notice is Notice.RESTART:
        return f"{who} has ended and is started again (restart {data.get('restarts', '?')}){why}"
    return f"{who} is not ready{why}"


def of_machine(event: EventRow) -> dict[str, Any]:
    """About a GPU or a node."""
    data = {name: str(value) for name, value in event.data}
    facts = {name: data.get(name, "?") for name in ("gpu", "node", "reason")}
    return {
        "text": _TROUBLE[event.kind].format(**facts),
        "event": Notice.TROUBLE.value,
        "at": write_time(event.at_ms),
        "kind": event.kind,
    } | data


def of_free_gpus(free: int, at_ms: int) -> dict[str, Any]:
    """GPUs came free that nobody waits for."""
    said = "1 GPU is free" if free == 1 else f"{free} GPUs are free"
    return {
        "text": said,
        "event": Notice.GPU_FREE.value,
        "at": write_time(at_ms),
        "free_gpus": free,
    }


def of_budget(
    tenant: str, user: str, used_hours: float, limit_hours: float, at_ms: int
) -> dict[str, Any]:
    """A budget is nearly used, or is used up."""
    percent = int(100 * used_hours / limit_hours) if limit_hours else 100
    who = f"user {user} of tenant {tenant}" if user else f"tenant {tenant}"
    return {
        "text": f"{who} has used {percent} % of {limit_hours:g} GPU-hours",
        "event": Notice.BUDGET.value,
        "at": write_time(at_ms),
        "tenant": tenant,
        "user": user,
        "used_gpu_hours": round(used_hours, 3),
        "limit_gpu_hours": limit_hours,
        "percent": percent,
    }


def spell(milliseconds: int) -> str:
    """A duration in at most two words: 3 h 20 min."""
    seconds = max(0, milliseconds) // 1000
    for size, unit, below, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // below
            return f"{seconds // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{seconds} s"


def _place(placements: Sequence[Placement]) -> str:
    places = [
        f"{placement.node_id} GPU {','.join(str(share.index) for share in placement.devices)}"
        if placement.devices
        else placement.node_id
        for placement in placements
    ]
    return f" on {', '.join(places[:4])}" if places else ""


# --- Why something could not be delivered.


class DeliveryFailed(Exception):
    """A try that failed. `everybody`: the receiver itself is unwell, others need not be tried."""

    def __init__(self, why: str, *, everybody: bool = False) -> None:
        super().__init__(why)
        self.everybody = everybody
