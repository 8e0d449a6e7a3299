"""When a job should start and end, and how that is known; also for jobs that are not queued yet.

A time is told only if something vouches for it. Where nothing does, it is said why not: no time is
better than a wrong one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gpu_scheduler.api.explainer import Explainer, StartForecast, ran_so_far_ms
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.scheduling.forecast_audit import expected_end_ms
from gpu_scheduler.engine.forecast import MOST_GUESSES, guesses_ahead, rough_start_ms
from gpu_scheduler.engine.placement.capacity import open_room
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.model.job import Dependency, Job, display_name
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import BEYOND_MS
from gpu_scheduler.model.snapshot import Running, Waiting
from gpu_scheduler.predict.interface import is_guess

RESERVED = "reserved"
FORECAST = "forecast"
ROUGH = "rough"
KNOWN = "known"
DEPENDENCY = "dependency"
LONGEST_CHAIN = 20
"""So many jobs that wait for one another are followed."""
MOST_NAMED = 3
NOT_KNOWN = "has no time limit of its own and no history"
SELF_EVIDENT = frozenset({ReasonCode.NO_NODES, ReasonCode.NODES_CLOSED, ReasonCode.NO_RUNNER})
"""Reasons that also say why there is no time."""


class ExpectedTime(NamedTuple):
    """A moment and its basis, one of the words above; or nothing, and why not."""

    at_ms: int | None
    basis: str = ""
    why_not: str = ""


NOTHING = ExpectedTime(None)


class ExpectedTimes(NamedTuple):
    """What a new job may expect: start, end, and its place in line if it would queue at once."""

    start: ExpectedTime
    end: ExpectedTime
    place: int | None


def forecast_start(
    service: Service, explainer: Explainer, job_id: str, depth: int = 0
) -> ExpectedTime:
    """When a living job that does not run should start."""
    record = service.core.state.jobs.get(job_id)
    if record is None:
        return NOTHING
    if not record.queued:
        return _of_what_it_waits_for(service, explainer, record, depth)
    reason = explainer.reason(job_id)
    if reason is not None and reason.code is ReasonCode.BUDGET:
        return _next_budget(reason)
    if reason is not None and reason.code in SELF_EVIDENT:
        return NOTHING
    return forecast_queued_start(
        service, explainer, service.core.state.cluster.queue.entries[record.job.number]
    )


def forecast_queued_start(service: Service, explainer: Explainer, entry: Entry) -> ExpectedTime:
    """When a queued job should start."""
    return _told(service, explainer, entry, explainer.outlook(entry.number))


def forecast_new_job(service: Service, explainer: Explainer, job: Job) -> ExpectedTimes:
    """When a job that is not there yet should start and end, if it were submitted now."""
    state = service.core.state
    now_ms = service.now_ms()
    obstacle = _before_the_queue(service, explainer, job)
    if obstacle is not None:
        end = NOTHING
        if explainer.is_guess(job):
            end = ExpectedTime(None, "", f"it {NOT_KNOWN}; --time or --estimate would tell")
        elif obstacle.at_ms is not None:
            end = ExpectedTime(obstacle.at_ms + state.predictor.expect(job, now_ms), obstacle.basis)
        return ExpectedTimes(obstacle, end, None)
    number = state.next_number
    waiting = Waiting(
        job=replace(job, id=f"job-{number}", number=number, submit_ms=now_ms),
        expected_ms=state.predictor.expect(job, now_ms),
        tasks=None if job.array is None else job.array.tasks,
        since_ms=now_ms,
    )
    outlook, place = explainer.outlook_if_queued(waiting)
    entry = state.cluster.enqueue(waiting)
    try:
        start = _told(service, explainer, entry, outlook)
        return ExpectedTimes(start, end_of_queued(explainer, entry, start), place)
    finally:
        state.cluster.dequeue(number)


def _before_the_queue(service: Service, explainer: Explainer, job: Job) -> ExpectedTime | None:
    """What keeps a new job from the queue: a hold, a begin time, other jobs; None for nothing."""
    if job.hold:
        return ExpectedTime(None, "", "it is held until somebody releases it")
    found = []
    if job.begin_ms > service.now_ms():
        found.append(ExpectedTime(job.begin_ms, KNOWN))
    for dependency in job.dependencies:
        if dependency.job_id in service.core.state.jobs:
            end = _end_of(service, explainer, dependency.job_id, 0)
            if end.at_ms is None:
                return end
            found.append(ExpectedTime(end.at_ms, DEPENDENCY))
    return max(found, key=lambda one: one.at_ms or 0) if found else None


def _told(
    service: Service, explainer: Explainer, entry: Entry, outlook: StartForecast
) -> ExpectedTime:
    cluster = service.core.state.cluster
    if outlook.guesses:
        return ExpectedTime(None, "", _hangs_on(service, outlook.guesses))
    if outlook.start_ms is not None:
        return ExpectedTime(outlook.start_ms, RESERVED if outlook.is_reserved else FORECAST)
    if not open_room(cluster, entry.shape):
        return ExpectedTime(None, "", _too_few_open(entry))
    if outlook.is_never:
        return ExpectedTime(None, "", "nothing that is expected to end lets it start")
    guesses = guesses_ahead(cluster, entry.number, service.now_ms(), explainer.is_guess)
    if guesses:
        return ExpectedTime(None, "", _hangs_on(service, guesses, sampled=True))
    rough_ms = rough_start_ms(cluster, entry.number, service.now_ms())
    if rough_ms is None or rough_ms - service.now_ms() >= BEYOND_MS:
        return NOTHING
    return ExpectedTime(max(rough_ms, explainer.foreseen_until_ms()), ROUGH)


def end_of_queued(explainer: Explainer, entry: Entry, start: ExpectedTime) -> ExpectedTime:
    """When a queued job should end, if it starts then."""
    waiting = entry.waiting
    if waiting.job.service:
        return ExpectedTime(None, "", "a service runs until somebody ends it")
    if explainer.is_guess(waiting.job, waiting.attained_ms):
        return ExpectedTime(None, "", f"it {NOT_KNOWN}; --time or --estimate would tell")
    if start.at_ms is None:
        return NOTHING
    return ExpectedTime(
        start.at_ms + max(1, waiting.expected_ms - waiting.attained_ms), start.basis
    )


def end_of_running(service: Service, running: Running) -> ExpectedTime:
    """When something that runs should end."""
    job = running.job
    if job.service:
        return ExpectedTime(None, "", "a service runs until somebody ends it")
    if not _is_heard_of(service, running):
        return ExpectedTime(None, "", "nothing is heard of its node")
    now_ms = service.now_ms()
    predictor = service.core.state.predictor
    if not running.stopping and is_guess(predictor, job, ran_so_far_ms(running, now_ms)):
        return ExpectedTime(None, "", f"it {NOT_KNOWN}")
    return ExpectedTime(max(now_ms, expected_end_ms(predictor, running, now_ms)), FORECAST)


def _is_heard_of(service: Service, running: Running) -> bool:
    """Tell whether all nodes of an allocation answer."""
    by_id = service.core.state.cluster.index.by_id
    nodes = [by_id.get(placement.node_id) for placement in running.allocation.placements]
    return all(
        resources is None or resources.node.state is not NodeState.LOST for resources in nodes
    )


def _hangs_on(service: Service, numbers: frozenset[int], *, sampled: bool = False) -> str:
    """Name the jobs of which nobody knows when they end."""
    entries = service.core.state.cluster.queue.entries
    running = {
        entry.running.job.number: entry.running.job
        for entry in service.core.state.cluster.running.values()
        if entry.running.job.number in numbers
    }
    jobs: list[Job] = [
        entries[number].waiting.job if number in entries else running[number]
        for number in sorted(numbers)
        if number in entries or number in running
    ]
    if len(jobs) == 1:
        return f"{display_name(jobs[0].id)} comes before it and {NOT_KNOWN}"
    named = ", ".join(job.id.removeprefix("job-") for job in jobs[:MOST_NAMED])
    named += ", ..." if len(jobs) > MOST_NAMED else ""
    is_least = sampled or len(numbers) >= MOST_GUESSES
    count = f"{len(numbers)} or more" if is_least else str(len(numbers))
    return f"{count} jobs before it ({named}) have no time limits of their own and no history"


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


def _next_budget(reason: Reason) -> ExpectedTime:
    """A budget that is used up begins anew at a known time."""
    turns_ms = reason.get("turns_ms")
    return ExpectedTime(turns_ms, KNOWN) if isinstance(turns_ms, int) else NOTHING


def _of_what_it_waits_for(
    service: Service, explainer: Explainer, record: JobRecord, depth: int
) -> ExpectedTime:
    """The latest of all begin times, pauses and ends of other jobs; nothing for a hold."""
    found: list[int] = []
    basis = KNOWN
    for obstacle, reason in (record.waiting_on or {}).items():
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
    return ExpectedTime(max(found), basis) if found else NOTHING


def _end_of(service: Service, explainer: Explainer, job_id: str, depth: int) -> ExpectedTime:
    """When another job should have ended."""
    state = service.core.state
    record = state.jobs.get(job_id)
    if record is None or depth >= LONGEST_CHAIN:
        return NOTHING
    ends = [
        end_of_running(service, state.cluster.running[task.allocation_id].running)
        for task in (record.only_task, *record.tasks.values())
        if task is not None and task.allocation_id in state.cluster.running
    ]
    unknown = [end for end in ends if end.at_ms is None]
    if unknown or explainer.is_guess(record.job):
        why = unknown[0].why_not.removeprefix("it ") if unknown else NOT_KNOWN
        return ExpectedTime(None, "", f"{display_name(job_id)}, which it waits for, {why}")
    if ends and not record.pending:
        return max(ends, key=lambda end: end.at_ms or 0)
    start = forecast_start(service, explainer, job_id, depth + 1)
    if start.at_ms is None:
        return start
    expected_ms = record.expected_ms or state.predictor.expect(record.job, service.now_ms())
    return ExpectedTime(start.at_ms + max(1, expected_ms), DEPENDENCY)
