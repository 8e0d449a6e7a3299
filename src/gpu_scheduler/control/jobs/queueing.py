"""From submission to the end of a job: when it is queued, how an attempt is stopped, how it ends.

A job is in the engine's queue if nothing keeps it out: no hold, begin time, unmet dependency,
back-off or missing node.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gpu_scheduler.control.effects import Outcome, StopOrder
from gpu_scheduler.control.job_record import HELD, SET_ASIDE, JobRecord, TaskRecord
from gpu_scheduler.control.jobs.dependencies import (
    is_met,
    never_met,
    resolve_dependencies,
    wait_for_job,
    waits_for,
)
from gpu_scheduler.control.messages import NoteEstimates
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.ledger.report import place_in_range
from gpu_scheduler.model.cluster_snapshot import Waiting
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.predict.start_ranges import LEAST_WAIT_MS
from gpu_scheduler.store.rows import EstimateRow, Removed, TaskRow

PREEMPTED = "preempted"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
NODE_LOST = "node_lost"
NOT_BEGUN = "not_begun"
GPU_MEMORY = "gpu_memory"
GPU_IDLE = "gpu_idle"
LEASE = "lease"
"""The node stopped the job itself, because its lease expired without contact to a server."""


def stop(
    state: ControlState, allocation_id: str, why: str, outcome: Outcome, *, cause: str = ""
) -> bool:
    """Order an attempt to stop, once; False if that changed nothing. The cause is shown with it.

    The first reason is kept, except that a cancellation replaces a reason that allows a retry.
    """
    found = state.running(allocation_id)
    if found is None:
        return False
    record, number, task = found
    if not task.stop_why:
        running = state.cluster.running[allocation_id].running
        state.cluster.revise(replace(running, stopping=True))
        outcome.effects.append(StopOrder(allocation_id, why))
        task.stop_why, task.stop_cause = why, cause
        if record.job.service:
            state.services_to_reconcile[record.job.service] = None
    elif why == CANCELLED and (task.stop_why in {PREEMPTED, NOT_BEGUN} or record.job.service):
        task.stop_why, task.stop_cause = CANCELLED, ""
    else:
        return False
    # Stored, so that the reason survives a restart of the server.
    outcome.writes.append(record.row() if number is None else record.task_row(number, task))
    return True


BEGIN = "begin"
BACKOFF = "backoff"
PROTECT = "protect"


def make_eligible(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """Check everything that can keep a new job out of the queue; queue it if nothing does."""
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
            record.reason = never_met(dependency, end.state)
            cancel_pending(state, record, None, now_ms)
            finish(state, record, now_ms, outcome)
            return
    enqueue_if_ready(state, record, now_ms, outcome)


def wait_for_begin(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Keep a job out of the queue until its begin time, a calendar time."""
    job = record.job
    record.clear_wait(BEGIN)
    if job.begin_ms > state.calendar_ms(now_ms):
        record.wait_on(BEGIN, Reason(ReasonCode.BEGIN_TIME, (("begin_ms", job.begin_ms),)))
        state.set_timer(job.begin_ms - state.calendar.offset_ms, BEGIN, job.id)


def enqueue_if_ready(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """Queue the job if nothing keeps it out, and write its row."""
    queue_if_ready(state, record, now_ms)
    outcome.keep(record)


def queue_if_ready(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Queue the job if nothing keeps it out."""
    tasks = None if record.job.array is None else record.pending
    if not record.waiting_on and not record.queued and (tasks is None or tasks):
        _enqueue(state, record, tasks, now_ms)


def update_tasks(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """The pending tasks of an array changed; it keeps its waiting time and its reservation."""
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
    """A back-off timer fired; ignored if the task is gone or has a later back-off."""
    task = record.only_task if number is None else record.tasks.get(number)
    if task is None or not 0 < task.resume_ms <= now_ms:
        return
    task.resume_ms = 0
    task.clock_ms = waiting_clock(state, record, now_ms)
    if number is None:
        record.clear_wait(BACKOFF)
        enqueue_if_ready(state, record, now_ms, outcome)
    else:
        record.pending = record.pending.with_number(number)
        outcome.writes.append(record.task_row(number, task))
        update_tasks(state, record, now_ms, outcome)


def protect(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """Give a job that has waited long enough precedence, or try again at the next tick.

    Protected jobs together keep to the share of the GPUs that the policy gives them, but for jobs
    that have waited longest of all, and the first one.
    """
    entry = state.cluster.queue.entries.get(record.job.number)
    feedback = state.policy.feedback
    waited_ms = 0 if entry is None else entry.waiting.waited_at(now_ms)
    if entry is None or waited_ms < feedback.protect_after_ms:
        return
    if waited_ms < feedback.protect_at_latest_ms:
        protected_milli = _protected_gpu_milli(state)
        total_milli = protected_milli + record.job.gpu_milli
        if protected_milli and 100 * total_milli > feedback.protect_percent * (
            state.cluster.total_gpu_milli
        ):
            left_ms = feedback.protect_at_latest_ms - waited_ms
            state.set_timer(now_ms + min(feedback.tick_ms, left_ms), PROTECT, record.job.id)
            return
    if feedback.adapts and not state.cluster.feedback.thresholds_ms:
        # Without levels, jobs go in the order of submission.
        state.set_timer(now_ms + feedback.tick_ms, PROTECT, record.job.id)
        return
    record.task(None).protected = True
    state.protected[record.job.id] = None
    leave_queue(state, record, now_ms)
    enqueue_if_ready(state, record, now_ms, outcome)


def _protected_gpu_milli(state: ControlState) -> int:
    """The GPUs that protected jobs hold or wait for; jobs that have ended are forgotten."""
    for job_id in [job_id for job_id in state.protected if job_id not in state.jobs]:
        del state.protected[job_id]
    return sum(state.jobs[job_id].job.gpu_milli for job_id in state.protected)


def set_protect_timer(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Set the timer after which a waiting job gets precedence, if the policy has one."""
    protect_ms = state.policy.feedback.protect_after_ms
    if protect_ms:
        state.set_timer(now_ms + max(0, protect_ms - record.waited_ms), PROTECT, record.job.id)


def leave_queue(state: ControlState, record: JobRecord, now_ms: int) -> None:
    """Take a job out of the engine's queue, if it is there; its waiting time is kept."""
    if record.queued:
        record.waited_ms = state.cluster.dequeue(record.job.number).waited_at(now_ms)
        record.queued = False
        state.changed = True


def set_aside(
    state: ControlState, record: JobRecord, error: str, now_ms: int, outcome: Outcome
) -> None:
    """Keep a job out of the queue that makes the engine fail, until it is released or changed.

    This is not stored: after a restart, perhaps of a repaired version, the job is tried again.
    """
    leave_queue(state, record, now_ms)
    withdraw_estimate(state, record.job.id, outcome)
    record.wait_on(SET_ASIDE, Reason(ReasonCode.INTERNAL_ERROR, (("error", error),)))
    state.sweep.set_aside[record.job.id] = error
    outcome.keep(record)
    outcome.job_event(record.job, "set_aside", now_ms, data=(("error", error),))


def put_back(state: ControlState, record: JobRecord) -> None:
    """Let a job be tried again that was set aside."""
    record.clear_wait(SET_ASIDE)
    state.sweep.set_aside.pop(record.job.id, None)


def waiting_clock(state: ControlState, record: JobRecord, now_ms: int) -> int:
    """The total time of the job in the queue."""
    if not record.queued:
        return record.waited_ms
    return state.cluster.queue.entries[record.job.number].waiting.waited_at(now_ms)


def note_estimates(
    state: ControlState, message: NoteEstimates, now_ms: int, outcome: Outcome
) -> None:
    """Store the first start estimate of each job that waits for its first start.

    It is kept until the job starts, to measure its error.
    """
    for estimate in message.estimates:
        record = state.jobs.get(estimate.job_id)
        if record is None or not record.queued or record.has_started:
            continue
        if estimate.job_id in state.estimates:
            continue
        row = EstimateRow(
            job_id=estimate.job_id,
            tenant=record.job.tenant,
            user=record.job.user,
            made_ms=now_ms,
            promised_ms=max(now_ms, estimate.start_ms),
            basis=estimate.basis,
            forecast_ms=estimate.forecast_ms,
            earliest_ms=estimate.earliest_ms,
            latest_ms=estimate.latest_ms,
        )
        state.estimates[estimate.job_id] = row
        begin_estimate(state, row)
        outcome.writes.append(row)


def begin_estimate(state: ControlState, row: EstimateRow) -> None:
    """Compare an estimate that has a range with the real start, when the job starts."""
    if row.forecast_ms is not None:
        wait_ms = row.forecast_ms - row.made_ms
        state.start_ranges.begin(row.job_id, row.basis, wait_ms, row.made_ms)


def end_estimate(state: ControlState, row: EstimateRow, now_ms: int) -> None:
    """The job of an estimate has started: learn from its error, and count its range."""
    state.start_ranges.end(row.job_id, now_ms)
    earliest_ms, latest_ms = row.earliest_ms, row.latest_ms
    if earliest_ms is not None and latest_ms is not None and now_ms - row.made_ms > LEAST_WAIT_MS:
        state.ranges_kept[place_in_range(earliest_ms, latest_ms, now_ms)] += 1


def withdraw_estimate(state: ControlState, job_id: str, outcome: Outcome) -> None:
    """Delete the start estimate of a job that was changed or has ended."""
    state.start_ranges.withdraw(job_id)
    if state.estimates.pop(job_id, None) is not None:
        outcome.writes.append(Removed(EstimateRow, job_id))


def finish(state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome) -> None:
    """A job has ended: record it, and update the jobs that depend on it, recursively."""
    ending = deque([record])
    while ending:
        ending.extend(_finish_one(state, ending.popleft(), now_ms, outcome))


def cancel_pending(
    state: ControlState, record: JobRecord, chosen: IntervalSet | None, now_ms: int
) -> list[TaskRow]:
    """Cancel what waits of the job, or of the chosen tasks of an array.

    Return rows for the tasks that had started before, so that a restart does not requeue them.
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
    """The queue entry of an array with its pending tasks, and the service time of the next one."""
    return replace(waiting, tasks=record.pending, served_ms=_served_ms(record, record.pending))


def _served_ms(record: JobRecord, tasks: IntervalSet | None) -> int:
    """The service time of the job; for an array, of its next task."""
    task = record.tasks.get(tasks.first) if tasks else record.only_task
    return 0 if task is None else task.served_ms


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
        # Fixed for a plain job; an array may have learnt from its own tasks.
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
        set_protect_timer(state, record, now_ms)
    record.queued = True
    record.since_ms = now_ms
    state.changed = True


def _effective_job(state: ControlState, job: Job, task: TaskRecord) -> Job:
    """The job for the engine: without the optional members that the last attempt lost."""
    most = task.most_members
    if not most or most >= len(job.members):
        return job
    return replace(job, members=state.shared_members(job.members[:most]))


def _finish_one(
    state: ControlState, record: JobRecord, now_ms: int, outcome: Outcome
) -> list[JobRecord]:
    """End one job; return the dependent jobs that end with it, because they can never start."""
    leave_queue(state, record, now_ms)
    job = record.job
    if record.end_ms is None:
        record.end_ms = now_ms
    job_state = record.state
    outcome.keep(record)
    outcome.job_event(job, job_state.value, now_ms)
    withdraw_estimate(state, job.id, outcome)
    state.forget(record, job_state)
    if job.service:
        state.services_to_reconcile[job.service] = None
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
        if resolve_dependencies(dependent, job.id, job_state):
            enqueue_if_ready(state, dependent, now_ms, outcome)
        else:
            cancel_pending(state, dependent, None, now_ms)
            lost.append(dependent)
    return lost


_FRESH = TaskRecord()
"""The task record of a job that has never started; read only."""
