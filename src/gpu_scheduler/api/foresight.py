"""When a job should start, and how that is known, also for jobs that are not queued yet."""

from __future__ import annotations

from gpu_scheduler.api.explain import Explainer
from gpu_scheduler.api.service import Service
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.engine.rough import rough_start_ms
from gpu_scheduler.model.job import Dependency
from gpu_scheduler.model.reasons import Reason, ReasonCode

RESERVED = "reserved"
FORECAST = "forecast"
ROUGH = "rough"
KNOWN = "known"
DEPENDENCY = "dependency"
LONGEST_CHAIN = 20
"""So many jobs that wait for one another are followed."""

Foreseen = tuple[int | None, str]
"""A start in milliseconds, and its basis: one of the words above; or nothing."""


def foreseen(service: Service, explainer: Explainer, job_id: str, depth: int = 0) -> Foreseen:
    """When a living job that does not run should start."""
    life = service.core.book.lives.get(job_id)
    if life is None:
        return None, ""
    if not life.queued:
        return _of_what_it_waits_for(service, explainer, life, depth)
    number = life.job.number
    reason = explainer.reason(job_id)
    if reason is not None and reason.code is ReasonCode.BUDGET:
        return _next_budget(reason)
    if number in service.core.book.picture.reservations:
        return explainer.expected_start_ms(number), RESERVED
    start_ms = explainer.expected_start_ms(number)
    if start_ms is not None:
        return start_ms, FORECAST
    if reason is not None and reason.code in {
        ReasonCode.NO_NODES,
        ReasonCode.NODES_CLOSED,
        ReasonCode.NO_RUNNER,
    }:
        return None, ""
    rough_ms = rough_start_ms(service.core.book.picture, number, service.now_ms())
    if rough_ms is None:
        return None, ""
    return max(rough_ms, explainer.foreseen_until_ms()), ROUGH


def _next_budget(reason: Reason) -> Foreseen:
    """A budget that is used up begins anew at a known time."""
    turns_ms = reason.get("turns_ms")
    return (turns_ms, KNOWN) if isinstance(turns_ms, int) else (None, "")


def _of_what_it_waits_for(
    service: Service, explainer: Explainer, life: JobLife, depth: int
) -> Foreseen:
    """The latest of all begin times, pauses and ends of other jobs; nothing for a hold."""
    found: list[int] = []
    basis = KNOWN
    for obstacle, reason in (life.waiting_on or {}).items():
        at_ms: int | None = None
        if isinstance(obstacle, Dependency):
            at_ms = _end_of(service, explainer, obstacle.job_id, depth)
            basis = DEPENDENCY
        else:
            value = reason.get("begin_ms") or reason.get("until_ms")
            at_ms = value if isinstance(value, int) else None
        if at_ms is None:
            return None, ""
        found.append(at_ms)
    return (max(found), basis) if found else (None, "")


def _end_of(service: Service, explainer: Explainer, job_id: str, depth: int) -> int | None:
    """When another job should have ended."""
    book = service.core.book
    life = book.lives.get(job_id)
    if life is None or depth >= LONGEST_CHAIN:
        return None
    running = [
        book.picture.running[task.allocation_id].running.expected_end_ms
        for task in (life.only_task, *life.tasks.values())
        if task is not None and task.allocation_id in book.picture.running
    ]
    if running and not life.pending:
        return max(running)
    start_ms, _ = foreseen(service, explainer, job_id, depth + 1)
    if start_ms is None:
        return None
    return start_ms + max(1, life.expected_ms or book.predictor.expect(life.job, service.now_ms()))
