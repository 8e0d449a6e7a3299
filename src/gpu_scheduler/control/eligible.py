"""Whether a job may be queued: holds, begin times and dependencies; and how a job ends."""

from __future__ import annotations

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.control.messages import Outcome
from gpu_scheduler.model.job import Dependency, DependencyKind
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.model.states import ENDED, JobState
from gpu_scheduler.store.rows import EventRow

HELD = "hold"
BEGIN = "begin"
BACKOFF = "backoff"
PROTECT = "protect"


def make_eligible(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Look at everything that can keep a new (or retried) job from the queue."""
    job = life.job
    life.waiting_on.clear()
    if job.hold:
        life.waiting_on[HELD] = None
        life.reason = Reason(ReasonCode.HELD)
    if job.begin_ms > now_ms:
        life.waiting_on[BEGIN] = None
        life.reason = Reason(ReasonCode.BEGIN_TIME, (("begin_ms", job.begin_ms),))
        book.set_timer(job.begin_ms, BEGIN, job.id)
    for dependency in job.dependencies:
        state = book.ended.get(dependency.job_id)
        if state is None:
            life.waiting_on[f"job {dependency.job_id}"] = None
            life.reason = _waits_for(dependency)
            book.dependents.setdefault(dependency.job_id, {})[job.id] = None
        elif not is_met(dependency.kind, state):
            end_never_met(book, life, dependency, state, now_ms, outcome)
            return
    enqueue_if_ready(book, life, now_ms, outcome)


def clear(book: Book, life: JobLife, what: str, now_ms: int, outcome: Outcome) -> None:
    """One thing that kept the job from the queue is gone."""
    if what in life.waiting_on:
        del life.waiting_on[what]
        enqueue_if_ready(book, life, now_ms, outcome)


def enqueue_if_ready(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """Queue the job if nothing is in the way."""
    if life.waiting_on or life.queued:
        outcome.writes.append(life.row())
        return
    job = life.job
    life.reason = None
    tasks = None
    attained_ms = waited_ms = preemptions = 0
    expected_ms = 0
    protected = False
    if job.array is None:
        task = life.task(None)
        protected = task.protected
        attained_ms, waited_ms, preemptions = task.attained_ms, task.waited_ms, task.preemptions
        expected_ms = task.expected_ms
    else:
        tasks = life.pending
    if not expected_ms:
        expected_ms = book.predictor.expect(job, now_ms)
    if attained_ms and attained_ms >= expected_ms:
        expected_ms = book.predictor.exceed(job, attained_ms, now_ms)
    if job.array is None:
        life.task(None).expected_ms = expected_ms
    book.picture.enqueue(
        Waiting(
            job=job,
            expected_ms=max(1, expected_ms),
            tasks=tasks,
            since_ms=now_ms,
            attained_ms=attained_ms,
            waited_ms=waited_ms,
            preemptions=preemptions,
            protected=protected,
        )
    )
    protect_ms = book.policy.feedback.protect_after_ms
    if protect_ms and not protected and job.array is None:
        book.set_timer(now_ms + max(0, protect_ms - waited_ms), PROTECT, job.id)
    life.queued = True
    book.changed = True
    outcome.writes.append(life.row())


def protect(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """A job that has waited long enough in all goes first from now on."""
    entry = book.picture.queue.entries.get(life.job.number)
    if entry is None or entry.waiting.waited_at(now_ms) < book.policy.feedback.protect_after_ms:
        return
    task = life.task(None)
    task.waited_ms += now_ms - task.since_ms
    task.since_ms = now_ms
    task.protected = True
    leave_queue(book, life)
    enqueue_if_ready(book, life, now_ms, outcome)


def leave_queue(book: Book, life: JobLife) -> None:
    """Take a job out of the engine's queue, if it is there."""
    if life.queued:
        book.picture.dequeue(life.job.number)
        life.queued = False
        book.changed = True


def finish(book: Book, life: JobLife, now_ms: int, outcome: Outcome) -> None:
    """A job has ended: remember how, and tell those that wait for it."""
    leave_queue(book, life)
    life.end_ms = now_ms
    state = life.state
    outcome.writes.append(life.row())
    outcome.writes.append(EventRow(at_ms=now_ms, kind=state.value, job_id=life.job.id))
    book.forget(life, state)
    for job_id in book.dependents.pop(life.job.id, {}):
        dependent = book.lives.get(job_id)
        if dependent is None:
            continue
        for dependency in dependent.job.dependencies:
            if dependency.job_id != life.job.id:
                continue
            if is_met(dependency.kind, state):
                clear(book, dependent, f"job {life.job.id}", now_ms, outcome)
            else:
                end_never_met(book, dependent, dependency, state, now_ms, outcome)
                break


def end_never_met(
    book: Book,
    life: JobLife,
    dependency: Dependency,
    state: JobState,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """A dependency that can no longer be met ends the job, with the reason."""
    life.reason = Reason(
        ReasonCode.DEPENDENCY_FAILED,
        (("job", dependency.job_id), ("kind", dependency.kind.value), ("state", state.value)),
    )
    cancel_pending(book, life, now_ms)
    finish(book, life, now_ms, outcome)


def cancel_pending(book: Book, life: JobLife, now_ms: int) -> None:
    """Everything of the job that has not started ends as cancelled."""
    job = life.job
    if job.array is None:
        life.end_task(None, JobState.CANCELLED)
        count = 1
    else:
        count = len(life.pending)
        life.states[JobState.CANCELLED] = life.pending.union(
            life.states.get(JobState.CANCELLED, life.pending)
        )
        life.pending = life.pending.minus(life.pending)
    book.queued_tasks -= count
    book.accounts.count_ended(job.tenant, job.user, JobState.CANCELLED, at_ms=now_ms, tasks=count)


def is_met(kind: DependencyKind, state: JobState) -> bool:
    """Tell whether an ended job satisfies a dependency on it."""
    if state not in ENDED:
        return False
    if kind is DependencyKind.AFTER_ANY:
        return True
    return (state is JobState.COMPLETED) == (kind is DependencyKind.AFTER_OK)


def _waits_for(dependency: Dependency) -> Reason:
    data = (("job", dependency.job_id), ("kind", dependency.kind.value))
    return Reason(ReasonCode.DEPENDENCY, data)
