"""What people do to a job after it was submitted: hold, release, reprioritise, cancel, retry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import HELD, JobLife
from gpu_scheduler.control.jobs.lifecycle import (
    BACKOFF,
    cancel_pending,
    enqueue_if_ready,
    finish,
    is_met,
    leave_queue,
    update_tasks,
    wait_for_begin,
    wait_for_job,
    waiting_clock,
)
from gpu_scheduler.control.jobs.stop import CANCELLED, stop
from gpu_scheduler.control.jobs.submit import NO_NODE, check_pending, check_room, revised
from gpu_scheduler.control.messages import Cancel, Retry
from gpu_scheduler.control.scheduling.forecast_audit import withdraw
from gpu_scheduler.control.state import Book
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Dependency, Job, JobState, called, expect_tasks
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.store.rows import EventRow, RemovedTenant


def hold(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Keep a waiting job, or the waiting tasks of an array, from starting."""
    job = life.job
    if not life.waits:
        raise WrongState(f"{called(job.id)} is {life.state}; only a pending job can be held")
    if life.is_waiting_on(HELD):
        return
    leave_queue(book, life, now_ms)
    withdraw(book, job.id, outcome)
    life.job = replace(job, hold=True)
    life.wait_on(HELD, Reason(ReasonCode.HELD))
    outcome.keep(life)
    outcome.writes.append(EventRow(at_ms=now_ms, kind="held", job_id=job.id, user=job.user))


def release(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Let a held job start again; one that is not held stays as it is."""
    if not life.is_waiting_on(HELD):
        return
    life.job = replace(life.job, hold=False)
    life.wait_no_more(HELD)
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind="released", job_id=life.job.id, user=life.job.user)
    )
    enqueue_if_ready(book, life, now_ms, outcome)


def reprioritise(book: Book, life: JobLife, priority: int, now_ms: int, outcome: Outcome) -> None:
    """Give what waits of a job another place in the order; what runs of it keeps its class."""
    if not life.waits:
        raise WrongState(
            f"{called(life.job.id)} is {life.state}; the priority of a pending job can be changed"
        )
    job = replace(life.job, priority=priority)
    leave_queue(book, life, now_ms)
    withdraw(book, job.id, outcome)
    life.job = job
    data = (("priority", priority),)
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind="reprioritised", job_id=job.id, user=job.user, data=data)
    )
    enqueue_if_ready(book, life, now_ms, outcome)


def update(
    book: Book, life: JobLife, changes: dict[str, Any], now_ms: int, outcome: Outcome
) -> None:
    """Change what a job that has never started asks for; it keeps its age."""
    if life.state is not JobState.PENDING or life.has_started:
        raise WrongState(
            f"{called(life.job.id)} has started; only a job that has not can be changed "
            "(the priority of what waits can be changed at any time)"
        )
    expect_no_service(life.job, "changed")
    job = revised(book, replace(life.job, **changes), now_ms)
    new = [d for d in job.dependencies if d not in life.job.dependencies]
    _check_dependencies(book, job, new)
    leave_queue(book, life, now_ms)
    withdraw(book, job.id, outcome)
    life.job = job
    life.expected_ms = 0
    for obstacle in list(life.waiting_on or ()):
        if isinstance(obstacle, Dependency) and obstacle not in job.dependencies:
            life.wait_no_more(obstacle)
    for dependency in new:
        if dependency.job_id in book.lives:
            wait_for_job(book, life, dependency)
    wait_for_begin(book, life, now_ms)
    if job.hold:
        life.wait_on(HELD, Reason(ReasonCode.HELD))
    else:
        life.wait_no_more(HELD)
    data = tuple((name, str(value)) for name, value in sorted(changes.items()))
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind="updated", job_id=job.id, user=job.user, data=data)
    )
    enqueue_if_ready(book, life, now_ms, outcome)


def _check_dependencies(book: Book, job: Job, new: list[Dependency]) -> None:
    """Refuse what is not known, can never be met, or waits for this job itself."""
    for dependency in new:
        end = book.ended.get(dependency.job_id)
        if end is None and dependency.job_id not in book.lives:
            raise InvalidRequest(f"{called(dependency.job_id)} is not known")
        if end is not None and not is_met(dependency.kind, end.state):
            raise InvalidRequest(
                f"{called(dependency.job_id)} is already {end.state}, so "
                f"{dependency.kind.value} can never be met"
            )
        if _waits_for(book, dependency.job_id, job.id):
            raise InvalidRequest(
                f"{called(dependency.job_id)} waits for {called(job.id)} itself; "
                "neither could ever start"
            )


def _waits_for(book: Book, job_id: str, other_id: str) -> bool:
    """Tell whether a job waits for another one, directly or through others."""
    seen, look_at = set[str](), [job_id]
    while look_at:
        name = look_at.pop()
        if name == other_id:
            return True
        life = book.lives.get(name)
        if name in seen or life is None:
            continue
        seen.add(name)
        look_at += [dependency.job_id for dependency in life.job.dependencies]
    return False


def remove_tenant(book: Book, tenant_id: str, now_ms: int, outcome: Outcome) -> None:
    """A tenant without jobs and reservations is gone; what it used stays in the accounts."""
    if tenant_id not in book.picture.tenants:
        raise UnknownThing(f"tenant '{tenant_id}' is not known")
    living = sum(1 for life in book.lives.values() if life.job.tenant == tenant_id)
    if living:
        raise WrongState(
            f"tenant '{tenant_id}' has {living} job{'s' * (living > 1)} that "
            f"{'have' if living > 1 else 'has'} not ended; cancel what is left first"
        )
    services = [service.name for service in book.services.values() if service.tenant == tenant_id]
    if services:
        raise WrongState(
            f"tenant '{tenant_id}' has services ({', '.join(services)}); delete them first"
        )
    kept = [window.id for window in book.picture.windows.values() if window.tenant == tenant_id]
    if kept:
        # Else its GPUs would be kept from everybody, for nobody.
        raise WrongState(
            f"GPUs are reserved for tenant '{tenant_id}' ({', '.join(kept)}); cancel that first"
        )
    book.remove_tenant(tenant_id)
    outcome.writes.append(RemovedTenant(tenant_id))
    data = (("tenant", tenant_id),)
    outcome.writes.append(EventRow(at_ms=now_ms, kind="tenant_removed", data=data))


def cancel(book: Book, command: Cancel, now_ms: int, outcome: Outcome) -> None:
    """End what waits at once, and order what runs to stop."""
    life = book.life(command.job_id)
    array = life.job.array
    chosen = command.tasks
    if chosen is not None and array is None:
        raise WrongState(f"{called(life.job.id)} is not an array; cancel it as a whole")
    if chosen is not None:
        expect_tasks(life.job, chosen)
    if array is None:
        if life.state is JobState.PENDING:
            cancel_pending(book, life, None, now_ms)
        elif life.only_task is not None:
            stop(book, life.only_task.allocation_id, CANCELLED, outcome)
    else:
        outcome.writes += cancel_pending(book, life, chosen, now_ms)
        for number, task in life.tasks.items():
            if task.allocation_id and (chosen is None or number in chosen):
                stop(book, task.allocation_id, CANCELLED, outcome)
    if life.has_ended:
        finish(book, life, now_ms, outcome)
    elif array is None:
        outcome.keep(life)
    else:
        update_tasks(book, life, now_ms, outcome)


def expect_no_service(job: Job, what: str) -> None:
    """Refuse what a service would undo."""
    if job.service:
        raise WrongState(
            f"{called(job.id)} is a replica of a service, which makes another one itself, so it "
            f"cannot be {what}; change the service instead ('tgpu service update')"
        )


def retry(book: Book, command: Retry, now_ms: int, outcome: Outcome) -> None:
    """Let a failed or cancelled job, or such tasks of a living array, wait again.

    A job that has ended can be retried as long as its end is remembered.
    """
    job_id = command.job_id
    end = book.ended.get(job_id)
    if end is None:
        life = book.life(job_id)
        expect_no_service(life.job, "retried")
        outcome.retried = _retry_tasks(book, life, command.cancelled, now_ms)
    elif end.life is None:
        raise WrongState(
            f"{called(job_id)} has completed; only a failed or cancelled job is retried"
        )
    else:
        life = end.life
        expect_no_service(life.job, "retried")
        outcome.retried = _revive(book, life, command, now_ms)
    outcome.writes.append(EventRow(at_ms=now_ms, kind="retried", job_id=job_id, user=life.job.user))
    if life.job.array is None:
        enqueue_if_ready(book, life, now_ms, outcome)
    else:
        update_tasks(book, life, now_ms, outcome)


def _retry_tasks(book: Book, life: JobLife, cancelled: bool, now_ms: int) -> IntervalSet:
    """Failed tasks of an array wait again, and cancelled ones if these are meant; says which."""
    again = life.tasks_to_retry(cancelled=cancelled)
    if not again and life.tasks_to_retry(cancelled=True):
        raise WrongState(
            f"{called(life.job.id)} has no failed task to retry; those that were cancelled are "
            "retried with 'cancelled'"
        )
    if not again:
        raise WrongState(f"{called(life.job.id)} has no failed or cancelled task to retry")
    check_room(book, len(again))
    check_pending(book, [(life.job, len(again))])
    life.retry_tasks(again, waiting_clock(book, life, now_ms))
    book.count_queued(life.job, len(again))
    return again


def _revive(book: Book, life: JobLife, command: Retry, now_ms: int) -> IntervalSet | None:
    """A job that has ended lives again; attempts are counted on. Says which tasks of an array."""
    job = life.job
    unmet = _unmet(book, life)
    again = None
    if job.array is not None:
        # Of an array that has ended without a failure only the cancelled tasks can be meant.
        is_meant = command.cancelled or not life.tasks_to_retry(cancelled=False)
        again = _retry_tasks(book, life, is_meant, now_ms)
    else:
        check_room(book, 1)
        check_pending(book, [(job, 1)])
        task = life.task(None)
        task.move_to(JobState.PENDING)
        task.failures = task.misstarts = task.prolog_failures = task.most_members = 0
        task.stop_why = ""
        book.count_queued(job, 1)
    del book.ended[job.id]
    book.lives[job.id] = life
    life.end_ms = life.reason = None
    life.expected_ms = 0
    for dependency, is_over in unmet:
        if is_over:
            life.wait_no_more(dependency)
        else:
            wait_for_job(book, life, dependency)
    life.wait_no_more(BACKOFF)
    wait_for_begin(book, life, now_ms)
    if life.is_waiting_on(NO_NODE):
        book.unplaced[job.id] = None
        book.new_nodes = True
    return again


def _unmet(book: Book, life: JobLife) -> list[tuple[Dependency, bool]]:
    """What the job still waited for when it ended, and whether that is met by now.

    A dependency that was met once stays met, also when the other job is forgotten.
    """
    unmet = []
    for dependency in life.job.dependencies:
        if not life.is_waiting_on(dependency):
            continue
        end = book.ended.get(dependency.job_id)
        is_over = end is not None and is_met(dependency.kind, end.state)
        if not is_over and dependency.job_id not in book.lives:
            how = "is not known any more" if end is None else f"ended as {end.state}"
            raise WrongState(
                f"{called(life.job.id)} depends on {called(dependency.job_id)} "
                f"({dependency.kind.value}), which {how}; retry that one first, or submit anew"
            )
        unmet.append((dependency, is_over))
    return unmet
