"""Ordering an attempt to stop, and the reasons there are for that."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome, StopOrder
from gpu_scheduler.control.state import ControlState

PREEMPTED = "preempted"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
NODE_LOST = "node_lost"
NOT_BEGUN = "not_begun"
GPU_MEMORY = "gpu_memory"
GPU_IDLE = "gpu_idle"
LEASE = "lease"
"""A node has stopped it by itself, because it reached no server for so long."""


def stop(state: ControlState, allocation_id: str, why: str, outcome: Outcome) -> None:
    """Order an attempt to stop, once.

    The first reason counts, but a cancel beats those after which there would be another attempt.
    """
    found = state.running(allocation_id)
    if found is None:
        return
    record, number, task = found
    if not task.stop_why:
        running = state.cluster.running[allocation_id].running
        state.cluster.revise(replace(running, stopping=True))
        outcome.effects.append(StopOrder(allocation_id, why))
        task.stop_why = why
        if record.job.service:
            state.unsettled_services[record.job.service] = None
    elif why == CANCELLED and (task.stop_why in {PREEMPTED, NOT_BEGUN} or record.job.service):
        task.stop_why = CANCELLED
    else:
        return
    # Remembered, so that a restart between the order and the end does not forget why.
    outcome.writes.append(record.row() if number is None else record.task_row(number, task))
