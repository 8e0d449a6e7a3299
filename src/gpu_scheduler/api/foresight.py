"""When a job should start and end, and how that is known; also for jobs that are not queued yet.

A time is told only if something vouches for it. Where nothing does, it is said why not: no time is
better than a wrong one.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_scheduler.api.explain import Explainer
from gpu_scheduler.api.service import Service
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.engine.capacity import open_room
from gpu_scheduler.engine.forecast import BEYOND_MS, MOST_GUESSES
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.rough import guesses_ahead, rough_start_ms
from gpu_scheduler.model.job import Dependency, Job, called
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.snapshot import Running
from gpu_scheduler.predict.socket import is_guess

RESERVED = "reserved"
FORECAST = "forecast"
ROUGH = "rough"
KNOWN = "known"
DEPENDENCY = "dependency"
LONGEST_CHAIN = 20
"""So many jobs that wait for one another are followed."""
MOST_NAMED = 3
NOT_KNOWN = "has no time limit and no history"
SELF_EVIDENT = frozenset({ReasonCode.NO_NODES, ReasonCode.NODES_CLOSED, ReasonCode.NO_RUNNER})
"""Reasons that also say why there is no time."""


class Foreseen(NamedTuple):
    """A moment and its basis, one of the words above; or nothing, and why not."""

    at_ms: int | None
    basis: str = ""
    why_not: str = ""


NOTHING = Foreseen(None)


def foreseen(service: Service, explainer: Explainer, job_id: str, depth: int = 0) -> Foreseen:
    """When a living job that does not run should start."""
    life = service.core.book.lives.get(job_id)
    if life is None:
        return NOTHING
    if not life.queued:
        return _of_what_it_waits_for(service, explainer, life, depth)
    reason = explainer.reason(job_id)
    if reason is not None and reason.code is ReasonCode.BUDGET:
        return _next_budget(reason)
    if reason is not None and reason.code in SELF_EVIDENT:
        return NOTHING
    return of_queued(service, explainer, service.core.book.picture.queue.entries[life.job.number])


def of_queued(service: Service, explainer: Explainer, entry: Entry) -> Foreseen:
    """When a queued job should start."""
    picture = service.core.book.picture
    outlook = explainer.outlook(entry.number)
    if outlook.guesses:
        return Foreseen(None, "", _hangs_on(service, outlook.guesses))
    if outlook.start_ms is not None:
        return Foreseen(outlook.start_ms, RESERVED if outlook.is_reserved else FORECAST)
    if not open_room(picture, entry.shape):
        return Foreseen(None, "", _too_few_open(entry))
    if outlook.is_never:
        return Foreseen(None, "", "nothing that is expected to end lets it start")
    guesses = guesses_ahead(picture, entry.number, service.now_ms(), explainer.is_guess)
    if guesses:
        return Foreseen(None, "", _hangs_on(service, guesses, sampled=True))
    rough_ms = rough_start_ms(picture, entry.number, service.now_ms())
    if rough_ms is None or rough_ms - service.now_ms() >= BEYOND_MS:
        return NOTHING
    return Foreseen(max(rough_ms, explainer.foreseen_until_ms()), ROUGH)


def end_of_queued(explainer: Explainer, entry: Entry, start: Foreseen) -> Foreseen:
    """When a queued job should end, if it starts then."""
    waiting = entry.waiting
    if waiting.job.service:
        return Foreseen(None, "", "a service runs until somebody ends it")
    if explainer.is_guess(waiting.job, waiting.attained_ms):
        return Foreseen(None, "", f"it {NOT_KNOWN}; --time or --estimate would tell")
    if start.at_ms is None:
        return NOTHING
    return Foreseen(start.at_ms + max(1, waiting.expected_ms - waiting.attained_ms), start.basis)


def end_of_running(service: Service, running: Running) -> Foreseen:
    """When something that runs should end."""
    job = running.job
    if job.service:
        return Foreseen(None, "", "a service runs until somebody ends it")
    now_ms = service.now_ms()
    ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
    if not running.stopping and is_guess(service.core.book.predictor, job, ran_ms):
        return Foreseen(None, "", f"it {NOT_KNOWN}")
    return Foreseen(max(running.expected_end_ms, now_ms), FORECAST)


def _hangs_on(service: Service, numbers: frozenset[int], *, sampled: bool = False) -> str:
    """Name the jobs of which nobody knows when they end."""
    entries = service.core.book.picture.queue.entries
    running = {
        entry.running.job.number: entry.running.job
        for entry in service.core.book.picture.running.values()
        if entry.running.job.number in numbers
    }
    jobs: list[Job] = [
        entries[number].waiting.job if number in entries else running[number]
        for number in sorted(numbers)
        if number in entries or number in running
    ]
    if len(jobs) == 1:
        return f"{called(jobs[0].id)} comes before it and {NOT_KNOWN}"
    named = ", ".join(job.id.removeprefix("job-") for job in jobs[:MOST_NAMED])
    named += ", ..." if len(jobs) > MOST_NAMED else ""
    is_least = sampled or len(numbers) >= MOST_GUESSES
    count = f"{len(numbers)} or more" if is_least else str(len(numbers))
    return f"{count} jobs before it ({named}) have no time limit and no history"


def _too_few_open(entry: Entry) -> str:
    """Nothing that ends is enough: nodes or devices have to come back."""
    members = entry.shape.min_members
    if members == 1:
        return "no node that could run it takes work now"
    rack = " in one rack" * entry.shape.same_rack
    return (
        f"the nodes that take work now could not hold {members} members{rack} even if they were "
        "empty"
    )


def _next_budget(reason: Reason) -> Foreseen:
    """A budget that is used up begins anew at a known time."""
    turns_ms = reason.get("turns_ms")
    return Foreseen(turns_ms, KNOWN) if isinstance(turns_ms, int) else NOTHING


def _of_what_it_waits_for(
    service: Service, explainer: Explainer, life: JobLife, depth: int
) -> Foreseen:
    """The latest of all begin times, pauses and ends of other jobs; nothing for a hold."""
    found: list[int] = []
    basis = KNOWN
    for obstacle, reason in (life.waiting_on or {}).items():
        at_ms: int | None = None
        if isinstance(obstacle, Dependency):
            end = _end_of(service, explainer, obstacle.job_id, depth)
            if end.at_ms is None:
                return end
            at_ms = end.at_ms
            basis = DEPENDENCY
        else:
            value = reason.get("begin_ms") or reason.get("until_ms")
            at_ms = value if isinstance(value, int) else None
        if at_ms is None:
            return NOTHING
        found.append(at_ms)
    return Foreseen(max(found), basis) if found else NOTHING


def _end_of(service: Service, explainer: Explainer, job_id: str, depth: int) -> Foreseen:
    """When another job should have ended."""
    book = service.core.book
    life = book.lives.get(job_id)
    if life is None or depth >= LONGEST_CHAIN:
        return NOTHING
    ends = [
        end_of_running(service, book.picture.running[task.allocation_id].running)
        for task in (life.only_task, *life.tasks.values())
        if task is not None and task.allocation_id in book.picture.running
    ]
    unknown = [end for end in ends if end.at_ms is None]
    if unknown or explainer.is_guess(life.job):
        why = unknown[0].why_not.removeprefix("it ") if unknown else NOT_KNOWN
        return Foreseen(None, "", f"{called(job_id)}, which it waits for, {why}")
    if ends and not life.pending:
        return max(ends, key=lambda end: end.at_ms or 0)
    start = foreseen(service, explainer, job_id, depth + 1)
    if start.at_ms is None:
        return start
    expected_ms = life.expected_ms or book.predictor.expect(life.job, service.now_ms())
    return Foreseen(start.at_ms + max(1, expected_ms), DEPENDENCY)
