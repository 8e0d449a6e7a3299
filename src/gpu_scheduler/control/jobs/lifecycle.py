"""Whether a job may be queued: holds, begin times, dependencies and pauses; and how a job ends."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.gangs import as_it_starts
from gpu_scheduler.control.job_record import HELD, JobLife, TaskLife
from gpu_scheduler.control.scheduling.forecast_audit import withdraw
from gpu_scheduler.control.state import Book
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, Dependency, DependencyKind, JobState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.store.rows import EventRow, TaskRow

BEGIN = "begin"
BACKOFF = "backoff"
PROTECT = "protect"


def make_eligible(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Look at everything that can keep a new job from the queue."""
    job = life.job
    if job.hold:
        life.wait_on(HELD, Reason(ReasonCode.HELD))
    wait_for_begin(book, life, now_ms)
    for dependency in job.dependencies:
        end = book.ended.get(dependency.job_id)
        if end is None:
            wait_for_job(book, life, dependency)
        elif not is_met(dependency.kind, end.state):
            life.wait_on(dependency, waits_for(dependency))
            _never_met(book, life, dependency, end.state, now_ms)
            finish(book, life, now_ms, outcome)
            return
    enqueue_if_ready(book, life, now_ms, outcome)


def wait_for_begin(book: Book, life: JobLife, now_ms: int) -> None:
    """Keep a job from the queue until its begin time, if that lies ahead."""
    job = life.job
    life.wait_no_more(BEGIN)
    if job.begin_ms > now_ms:
        life.wait_on(BEGIN, Reason(ReasonCode.BEGIN_TIME, (("begin_ms", job.begin_ms),)))
        book.set_timer(job.begin_ms, BEGIN, job.id)


def wait_for_job(book: Book, life: JobLife, dependency: Dependency) -> None:
    """Keep a job from the queue until another one has ended."""
    life.wait_on(dependency, waits_for(dependency))
    book.dependents.setdefault(dependency.job_id, {})[life.job.id] = None


def enqueue_if_ready(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Queue the job if nothing is in the way, and write how it stands."""
    queue_if_ready(book, life, now_ms)
    outcome.keep(life)


def queue_if_ready(book: Book, life: JobLife, now_ms: int) -> None:
    """Queue the job if nothing is in the way."""
    tasks = None if life.job.array is None else life.pending
    if not life.waiting_on and not life.queued and (tasks is None or tasks):
        _enqueue(book, life, tasks, now_ms)


def update_tasks(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """The pending tasks of an array changed; in the queue it keeps its age and its reservation."""
    if life.queued and life.pending:
        picture = book.picture
        number = life.job.number
        reservation = picture.reservations.get(number)
        waiting = picture.dequeue(number)
        picture.enqueue(with_tasks(waiting, life))
        if reservation is not None:
            picture.reservations[number] = reservation
        book.changed = True
        outcome.keep(life)
        return
    leave_queue(book, life, now_ms)
    enqueue_if_ready(book, life, now_ms, outcome)


def resume(book: Book, life: JobLife, number: int | None, now_ms: int, outcome: Outcome) -> None:
    """A pause has ended, unless a later one has begun or the task is gone."""
    task = life.only_task if number is None else life.tasks.get(number)
    if task is None or not 0 < task.resume_ms <= now_ms:
        return
    task.resume_ms = 0
    task.clock_ms = waiting_clock(book, life, now_ms)
    if number is None:
        life.wait_no_more(BACKOFF)
        enqueue_if_ready(book, life, now_ms, outcome)
    else:
        life.pending = life.pending.with_number(number)
        outcome.writes.append(life.task_row(number, task))
        update_tasks(book, life, now_ms, outcome)


def protect(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """A job that has waited long enough in all goes first from now on."""
    entry = book.picture.queue.entries.get(life.job.number)
    if entry is None or entry.waiting.waited_at(now_ms) < book.policy.feedback.protect_after_ms:
        return
    life.task(None).protected = True
    leave_queue(book, life, now_ms)
    enqueue_if_ready(book, life, now_ms, outcome)


def protect_later(book: Book, life: JobLife, now_ms: int) -> None:
    """Look at a job again when it will have waited long enough, if the policy has such a time."""
    protect_ms = book.policy.feedback.protect_after_ms
    if protect_ms:
        book.set_timer(now_ms + max(0, protect_ms - life.waited_ms), PROTECT, life.job.id)


def leave_queue(book: Book, life: JobLife, now_ms: int) -> None:
    """Take a job out of the engine's queue, if it is there; how long it waited is kept."""
    if life.queued:
        life.waited_ms = book.picture.dequeue(life.job.number).waited_at(now_ms)
        life.queued = False
        book.changed = True


def waiting_clock(book: Book, life: JobLife, now_ms: int) -> int:
    """How long the job has stood in the queue in all."""
    if not life.queued:
        return life.waited_ms
    return book.picture.queue.entries[life.job.number].waiting.waited_at(now_ms)


def finish(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """A job has ended: remember how, and tell those that wait for it, and those behind them."""
    ending = deque([life])
    while ending:
        ending.extend(_finish_one(book, ending.popleft(), now_ms, outcome))


def cancel_pending(
    book: Book, life: JobLife, chosen: IntervalSet | None, now_ms: int
) -> list[TaskRow]:
    """Everything of the job (or of the chosen tasks) that waits ends as cancelled.

    Gives the rows of tasks that had started before, which must not be found waiting again.
    """
    job = life.job
    rows: list[TaskRow] = []
    if job.array is None:
        life.end_task(None, JobState.CANCELLED)
        count = 1
    else:
        count, rows = life.cancel_waiting(job.array.tasks if chosen is None else chosen, now_ms)
    book.count_queued(job, -count)
    book.accounts.count_ended(job.tenant, job.user, JobState.CANCELLED, at_ms=now_ms, tasks=count)
    return rows


def with_tasks(waiting: Waiting, life: JobLife) -> Waiting:
    """An array that waits with the tasks that are pending now, at the level of the next one."""
    return replace(waiting, tasks=life.pending, served_ms=_served_ms(life, life.pending))


def _served_ms(life: JobLife, tasks: IntervalSet | None) -> int:
    """What the job has had; of an array, what the task that comes next has had."""
    task = life.tasks.get(tasks.first) if tasks else life.only_task
    return 0 if task is None else task.served_ms


def is_met(kind: DependencyKind, state: JobState) -> bool:
    """Tell whether an ended job satisfies a dependency on it."""
    if state not in ENDED:
        return False
    if kind is DependencyKind.AFTER_ANY:
        return True
    return (state is JobState.COMPLETED) == (kind is DependencyKind.AFTER_OK)


def _enqueue(book: Book, life: JobLife, tasks: IntervalSet | None, now_ms: int) -> None:
    job = life.job
    task = life.only_task or _FRESH
    expected_ms = ENDLESS_MS if job.service else life.expected_ms
    expected_ms = expected_ms or book.predictor.expect(job, now_ms)
    if task.attained_ms and task.attained_ms >= expected_ms:
        expected_ms = book.predictor.exceed(job, task.attained_ms, now_ms)
    if tasks is None:
        # Frozen for a plain job; an array that comes back may have learnt from its own tasks.
        life.expected_ms = expected_ms
    book.picture.enqueue(
        Waiting(
            job=as_it_starts(book, job, task),
            expected_ms=max(1, expected_ms),
            tasks=tasks,
            since_ms=now_ms,
            attained_ms=task.attained_ms,
            served_ms=_served_ms(life, tasks),
            waited_ms=life.waited_ms,
            preemptions=task.preemptions,
            protected=task.protected,
        )
    )
    if not task.protected and tasks is None:
        protect_later(book, life, now_ms)
    life.queued = True
    life.since_ms = now_ms
    book.changed = True


def _finish_one(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> list[JobLife]:
    """One job has ended; returns those that end with it, as they could never start."""
    leave_queue(book, life, now_ms)
    job = life.job
    if life.end_ms is None:
        life.end_ms = now_ms
    state = life.state
    outcome.keep(life)
    outcome.writes.append(EventRow(at_ms=now_ms, kind=state.value, job_id=job.id, user=job.user))
    withdraw(book, job.id, outcome)
    book.forget(life, state)
    if job.service:
        book.unsettled_services[job.service] = None
    for dependency in job.dependencies:
        others = book.dependents.get(dependency.job_id)
        if others is not None:
            others.pop(job.id, None)
            if not others:
                del book.dependents[dependency.job_id]
    lost = []
    for job_id in book.dependents.pop(job.id, {}):
        dependent = book.lives.get(job_id)
        if dependent is None or dependent.has_ended:
            continue
        if _tell_dependent(book, dependent, job.id, state, now_ms):
            enqueue_if_ready(book, dependent, now_ms, outcome)
        else:
            lost.append(dependent)
    return lost


def _tell_dependent(
    book: Book, dependent: JobLife, job_id: str, state: JobState, now_ms: int
) -> bool:
    """Clear what was met; False if something can never be met, which ends the dependent job."""
    for dependency in dependent.job.dependencies:
        if dependency.job_id == job_id and dependent.is_waiting_on(dependency):
            if not is_met(dependency.kind, state):
                _never_met(book, dependent, dependency, state, now_ms)
                return False
            dependent.wait_no_more(dependency)
    return True


def _never_met(
    book: Book, life: JobLife, dependency: Dependency, state: JobState, now_ms: int
) -> None:
    """A dependency that can no longer be met cancels the job, with the reason."""
    life.reason = Reason(
        ReasonCode.DEPENDENCY_FAILED,
        (("job", dependency.job_id), ("kind", dependency.kind.value), ("state", state.value)),
    )
    cancel_pending(book, life, None, now_ms)


def waits_for(dependency: Dependency) -> Reason:
    """Why a job is kept from the queue until another one has ended."""
    data = (("job", dependency.job_id), ("kind", dependency.kind.value))
    return Reason(ReasonCode.DEPENDENCY, data)


_FRESH = TaskLife()
"""What holds for a job that has never started; only read."""
