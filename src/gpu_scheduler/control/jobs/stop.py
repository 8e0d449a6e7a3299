"""Ordering an attempt to stop, and the reasons there are for that."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome, StopOrder
from gpu_scheduler.control.state import Book

PREEMPTED = "preempted"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
NODE_LOST = "node_lost"
NOT_BEGUN = "not_begun"
GPU_MEMORY = "gpu_memory"
GPU_IDLE = "gpu_idle"
LEASE = "lease"
"""A node has stopped it by itself, because it reached no server for so long."""


def stop(book: Book, allocation_id: str, why: str, outcome: Outcome) -> None:
    """Order an attempt to stop, once.

    The first reason counts, but a cancel beats those after which there would be another attempt.
    """
    found = book.running(allocation_id)
    if found is None:
        return
    life, number, task = found
    if not task.stop_why:
        running = book.picture.running[allocation_id].running
        book.picture.revise(replace(running, stopping=True))
        outcome.effects.append(StopOrder(allocation_id, why))
        task.stop_why = why
        if life.job.service:
            book.unsettled_services[life.job.service] = None
    elif why == CANCELLED and (task.stop_why in {PREEMPTED, NOT_BEGUN} or life.job.service):
        task.stop_why = CANCELLED
    else:
        return
    # Remembered, so that a restart between the order and the end does not forget why.
    outcome.writes.append(life.row() if number is None else life.task_row(number, task))
