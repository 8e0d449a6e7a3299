"""Whether a job may be queued: holds, begin times, dependencies and pauses; and how a job ends."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome, StopOrder
from gpu_scheduler.control.job_record import HELD, JobRecord, TaskRecord
from gpu_scheduler.control.scheduling.forecast_audit import withdraw
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, Dependency, DependencyKind, Job, JobState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.store.rows import EventRow, TaskRow

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


BEGIN = "begin"
BACKOFF = "backoff"
PROTECT = "protect"


def make_eligible(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """Look at everything that can keep a new job from the queue."""
    job = record.job
    if job.hold:
        record.wait_on(HELD, Reason(ReasonCode.HELD))
    wait_for_begin(state, record, now_ms)
    for dependency in job.dependencies:
        end = state.ended.get(dependency.job_id)
        if end is None:
            wait_for_job(state, record, dependency)
        elif not is_met(dependency.kind, end.state):
            record.wait_on(dependency, waits_for(dependency))
            _never_met(state, record, dependency, end.state, now_ms)
            finish(state, record, now_ms, outcome)
            return
    enqueue_if_ready(state, record, now_ms, outcome)


def wait_for_begin(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Keep a job from the queue until its begin time, if that lies ahead."""
    job = record.job
    record.wait_no_more(BEGIN)
    if job.begin_ms > now_ms:
        record.wait_on(BEGIN, Reason(ReasonCode.BEGIN_TIME, (("begin_ms", job.begin_ms),)))
        state.set_timer(job.begin_ms, BEGIN, job.id)


def wait_for_job(state: ControlState, record: JobRecord, dependency: Dependency) -> None:
    """Keep a job from the queue until another one has ended."""
    record.wait_on(dependency, waits_for(dependency))
    state.dependents.setdefault(dependency.job_id, {})[record.job.id] = None


def enqueue_if_ready(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """Queue the job if nothing is in the way, and write how it stands."""
    queue_if_ready(state, record, now_ms)
    outcome.keep(record)


def queue_if_ready(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Queue the job if nothing is in the way."""
    tasks = None if record.job.array is None else record.pending
    if not record.waiting_on and not record.queued and (tasks is None or tasks):
        _enqueue(state, record, tasks, now_ms)


def update_tasks(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """The pending tasks of an array changed; in the queue it keeps its age and its reservation."""
    if record.queued and record.pending:
        cluster = state.cluster
        number = record.job.number
        reservation = cluster.reservations.get(number)
        waiting = cluster.dequeue(number)
        cluster.enqueue(with_tasks(waiting, record))
        if reservation is not None:
            cluster.reservations[number] = reservation
        state.changed = True
        outcome.keep(record)
        return
    leave_queue(state, record, now_ms)
    enqueue_if_ready(state, record, now_ms, outcome)


def resume(
    state: ControlState, record: JobRecord, number: int | None, now_ms: int, outcome: Outcome
) -> None:
    """A pause has ended, unless a later one has begun or the task is gone."""
    task = record.only_task if number is None else record.tasks.get(number)
    if task is None or not 0 < task.resume_ms <= now_ms:
        return
    task.resume_ms = 0
    task.clock_ms = waiting_clock(state, record, now_ms)
    if number is None:
        record.wait_no_more(BACKOFF)
        enqueue_if_ready(state, record, now_ms, outcome)
    else:
        record.pending = record.pending.with_number(number)
        outcome.writes.append(record.task_row(number, task))
        update_tasks(state, record, now_ms, outcome)


def protect(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """A job that has waited long enough in all goes first from now on."""
    entry = state.cluster.queue.entries.get(record.job.number)
    if entry is None or entry.waiting.waited_at(now_ms) < state.policy.feedback.protect_after_ms:
        return
    record.task(None).protected = True
    leave_queue(state, record, now_ms)
    enqueue_if_ready(state, record, now_ms, outcome)


def protect_later(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Look at a job again when it will have waited long enough, if the policy has such a time."""
    protect_ms = state.policy.feedback.protect_after_ms
    if protect_ms:
        state.set_timer(now_ms + max(0, protect_ms - record.waited_ms), PROTECT, record.job.id)


def leave_queue(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Take a job out of the engine's queue, if it is there; how long it waited is kept."""
    if record.queued:
        record.waited_ms = state.cluster.dequeue(record.job.number).waited_at(now_ms)
        record.queued = False
        state.changed = True


def waiting_clock(state: ControlState, record: JobRecord, now_ms: int) -> int:
    """How long the job has stood in the queue in all."""
    if not record.queued:
        return record.waited_ms
    return state.cluster.queue.entries[record.job.number].waiting.waited_at(now_ms)


def finish(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """A job has ended: remember how, and tell those that wait for it, and those behind them."""
    ending = deque([record])
    while ending:
        ending.extend(_finish_one(state, ending.popleft(), now_ms, outcome))


def cancel_pending(
    state: ControlState, record: JobRecord, chosen: IntervalSet | None, now_ms: int
) -> list[TaskRow]:
    """Everything of the job (or of the chosen tasks) that waits ends as cancelled.

    Gives the rows of tasks that had started before, which must not be found waiting again.
    """
    job = record.job
    rows: list[TaskRow] = []
    if job.array is None:
        record.end_task(None, JobState.CANCELLED)
        count = 1
    else:
        count, rows = record.cancel_waiting(job.array.tasks if chosen is None else chosen, now_ms)
    state.count_queued(job, -count)
    state.usage_totals.count_ended(
        job.tenant, job.user, JobState.CANCELLED, at_ms=now_ms, tasks=count
    )
    return rows


def with_tasks(waiting: Waiting, record: JobRecord) -> Waiting:
    """An array that waits with the tasks that are pending now, at the level of the next one."""
    return replace(waiting, tasks=record.pending, served_ms=_served_ms(record, record.pending))


def _served_ms(record: JobRecord, tasks: IntervalSet | None) -> int:
    """What the job has had; of an array, what the task that comes next has had."""
    task = record.tasks.get(tasks.first) if tasks else record.only_task
    return 0 if task is None else task.served_ms


def is_met(kind: DependencyKind, state: JobState) -> bool:
    """Tell whether an ended job satisfies a dependency on it."""
    if state not in ENDED:
        return False
    if kind is DependencyKind.AFTER_ANY:
        return True
    return (state is JobState.COMPLETED) == (kind is DependencyKind.AFTER_OK)


def _enqueue(
    state: ControlState, record: JobRecord, tasks: IntervalSet | None, now_ms: int
) -> None:
    job = record.job
    task = record.only_task or _FRESH
    expected_ms = ENDLESS_MS if job.service else record.expected_ms
    expected_ms = expected_ms or state.predictor.expect(job, now_ms)
    if task.attained_ms and task.attained_ms >= expected_ms:
        expected_ms = state.predictor.exceed(job, task.attained_ms, now_ms)
    if tasks is None:
        # Frozen for a plain job; an array that comes back may have learnt from its own tasks.
        record.expected_ms = expected_ms
    state.cluster.enqueue(
        Waiting(
            job=_effective_job(state, job, task),
            expected_ms=max(1, expected_ms),
            tasks=tasks,
            since_ms=now_ms,
            attained_ms=task.attained_ms,
            served_ms=_served_ms(record, tasks),
            waited_ms=record.waited_ms,
            preemptions=task.preemptions,
            protected=task.protected,
        )
    )
    if not task.protected and tasks is None:
        protect_later(state, record, now_ms)
    record.queued = True
    record.since_ms = now_ms
    state.changed = True


def _effective_job(state: ControlState, job: Job, task: TaskRecord) -> Job:
    """What the engine is asked for: those beyond the minimum come last, and are left out first."""
    most = task.most_members
    if not most or most >= len(job.members):
        return job
    return replace(job, members=state.shared_members(job.members[:most]))


def _finish_one(
    state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome
) -> list[JobRecord]:
    """One job has ended; returns those that end with it, as they could never start."""
    leave_queue(state, record, now_ms)
    job = record.job
    if record.end_ms is None:
        record.end_ms = now_ms
    job_state = record.state
    outcome.keep(record)
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind=job_state.value, job_id=job.id, user=job.user)
    )
    withdraw(state, job.id, outcome)
    state.forget(record, job_state)
    if job.service:
        state.unsettled_services[job.service] = None
    for dependency in job.dependencies:
        others = state.dependents.get(dependency.job_id)
        if others is not None:
            others.pop(job.id, None)
            if not others:
                del state.dependents[dependency.job_id]
    lost = []
    for job_id in state.dependents.pop(job.id, {}):
        dependent = state.jobs.get(job_id)
        if dependent is None or dependent.has_ended:
            continue
        if _tell_dependent(state, dependent, job.id, job_state, now_ms):
            enqueue_if_ready(state, dependent, now_ms, outcome)
        else:
            lost.append(dependent)
    return lost


def _tell_dependent(
    state: ControlState, dependent: JobRecord, job_id: str, job_state: JobState, now_ms: int
) -> bool:
    """Clear what was met; False if something can never be met, which ends the dependent job."""
    for dependency in dependent.job.dependencies:
        if dependency.job_id == job_id and dependent.is_waiting_on(dependency):
            if not is_met(dependency.kind, job_state):
                _never_met(state, dependent, dependency, job_state, now_ms)
                return False
            dependent.wait_no_more(dependency)
    return True


def _never_met(
    state: ControlState, record: JobRecord, dependency: Dependency, job_state: JobState, now_ms: int
) -> None:
    """A dependency that can no longer be met cancels the job, with the reason."""
    record.reason = Reason(
        ReasonCode.DEPENDENCY_FAILED,
        (
            ("job", dependency.job_id),
            ("kind", dependency.kind.value),
            ("state", job_state.value),
        ),
    )
    cancel_pending(state, record, None, now_ms)


def waits_for(dependency: Dependency) -> Reason:
    """Why a job is kept from the queue until another one has ended."""
    data = (("job", dependency.job_id), ("kind", dependency.kind.value))
    return Reason(ReasonCode.DEPENDENCY, data)


_FRESH = TaskRecord()
"""What holds for a job that has never started; only read."""
