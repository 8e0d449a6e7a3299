"""Commands about submitted jobs: hold, release, update, cancel, retry; and corrections of usage.

A command raises before it changes anything, or is carried out as a whole.

An admin may correct the run time for which an ended attempt was charged. The row of the attempt
gets another end, from which reports and bills are computed; totals, budgets and fair share change
by the difference.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import HELD, SET_ASIDE, JobRecord
from gpu_scheduler.control.jobs.dependencies import is_met, wait_for_job
from gpu_scheduler.control.jobs.queueing import (
    BACKOFF,
    CANCELLED,
    cancel_pending,
    enqueue_if_ready,
    finish,
    leave_queue,
    put_back,
    stop,
    update_tasks,
    wait_for_begin,
    waiting_clock,
    withdraw_estimate,
)
from gpu_scheduler.control.jobs.submit import NO_NODE, check_changed, check_pending, check_room
from gpu_scheduler.control.messages import (
    Cancel,
    CorrectUsage,
    Hold,
    Release,
    RemoveTenant,
    Reprioritise,
    Retry,
    Update,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.intervals import MOST_RANGES, IntervalSet
from gpu_scheduler.model.job import Dependency, Job, JobState, check_tasks_exist, display_name
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.rows import AttemptRow, Removed


def hold(state: ControlState, message: Hold, now_ms: int, outcome: Outcome) -> None:
    """Keep a waiting job, or the waiting tasks of an array, from starting."""
    record = state.job(message.job_id)
    job = record.job
    if not record.waits:
        raise WrongState(
            f"{display_name(job.id)} is {record.state}; only a pending job can be held"
        )
    if record.is_waiting_on(HELD):
        return
    leave_queue(state, record, now_ms)
    withdraw_estimate(state, job.id, outcome)
    record.job = replace(job, hold=True)
    record.wait_on(HELD, Reason(ReasonCode.HELD))
    outcome.keep(record)
    outcome.job_event(job, "held", now_ms)


def release(state: ControlState, message: Release, now_ms: int, outcome: Outcome) -> None:
    """Let a job start that is on hold or was set aside; another job is left unchanged."""
    record = state.job(message.job_id)
    if not record.is_waiting_on(HELD) and not record.is_waiting_on(SET_ASIDE):
        return
    put_back(state, record)
    record.job = replace(record.job, hold=False)
    record.clear_wait(HELD)
    outcome.job_event(record.job, "released", now_ms)
    enqueue_if_ready(state, record, now_ms, outcome)


def reprioritise(state: ControlState, message: Reprioritise, now_ms: int, outcome: Outcome) -> None:
    """Change the priority of a waiting job, or of the waiting tasks of an array."""
    record, priority = state.job(message.job_id), message.priority
    if not record.waits:
        raise WrongState(
            f"{display_name(record.job.id)} is {record.state}; "
            "the priority of a pending job can be changed"
        )
    job = replace(record.job, priority=priority)
    leave_queue(state, record, now_ms)
    withdraw_estimate(state, job.id, outcome)
    record.job = job
    data = (("priority", priority),)
    outcome.job_event(job, "reprioritised", now_ms, data=data)
    enqueue_if_ready(state, record, now_ms, outcome)


def update(state: ControlState, message: Update, now_ms: int, outcome: Outcome) -> None:
    """Change the request of a job that has never started; its waiting time is kept."""
    record, changes = state.job(message.job_id), dict(message.changes)
    if record.state is not JobState.PENDING or record.has_started:
        raise WrongState(
            f"{display_name(record.job.id)} has started; only a job that has not can be changed "
            "(the priority of its waiting tasks can be changed at any time)"
        )
    reject_replica(record.job, "changed")
    job = check_changed(state, replace(record.job, **changes), now_ms)
    new = [d for d in job.dependencies if d not in record.job.dependencies]
    _check_dependencies(state, job, new)
    leave_queue(state, record, now_ms)
    put_back(state, record)
    withdraw_estimate(state, job.id, outcome)
    record.job = job
    record.expected_ms = 0
    for obstacle in list(record.waiting_on or ()):
        if isinstance(obstacle, Dependency) and obstacle not in job.dependencies:
            record.clear_wait(obstacle)
    for dependency in new:
        if dependency.job_id in state.jobs:
            wait_for_job(state, record, dependency)
    wait_for_begin(state, record, now_ms)
    if job.hold:
        record.wait_on(HELD, Reason(ReasonCode.HELD))
    else:
        record.clear_wait(HELD)
    data = tuple((name, str(value)) for name, value in sorted(changes.items()))
    outcome.job_event(job, "updated", now_ms, data=data)
    enqueue_if_ready(state, record, now_ms, outcome)


def _check_dependencies(state: ControlState, job: Job, new: list[Dependency]) -> None:
    """Reject a dependency that is unknown, can never be met, or is circular."""
    for dependency in new:
        end = state.ended.get(dependency.job_id)
        if end is None and dependency.job_id not in state.jobs:
            raise InvalidRequest(f"{display_name(dependency.job_id)} is not known")
        if end is not None and not is_met(dependency.kind, end.state):
            raise InvalidRequest(
                f"{display_name(dependency.job_id)} is already {end.state}, so "
                f"{dependency.kind.value} can never be met"
            )
        if _waits_for(state, dependency.job_id, job.id):
            raise InvalidRequest(
                f"{display_name(dependency.job_id)} depends on {display_name(job.id)}; "
                "the dependency would be circular"
            )


def _waits_for(state: ControlState, job_id: str, other_id: str) -> bool:
    """Tell whether a job waits for another one, directly or through others."""
    seen, to_visit = set[str](), [job_id]
    while to_visit:
        name = to_visit.pop()
        if name == other_id:
            return True
        record = state.jobs.get(name)
        if name in seen or record is None:
            continue
        seen.add(name)
        to_visit += [dependency.job_id for dependency in record.job.dependencies]
    return False


def remove_tenant(
    state: ControlState, message: RemoveTenant, now_ms: int, outcome: Outcome
) -> None:
    """Remove a tenant that has no jobs, services and reservations; its usage stays recorded."""
    tenant_id = message.tenant_id
    if tenant_id not in state.cluster.tenants:
        raise UnknownThing(f"tenant '{tenant_id}' is not known")
    living = sum(1 for record in state.jobs.values() if record.job.tenant == tenant_id)
    if living:
        raise WrongState(
            f"tenant '{tenant_id}' has {living} job{'s' * (living > 1)} that "
            f"{'have' if living > 1 else 'has'} not ended; cancel what is left first"
        )
    services = [service.name for service in state.services.values() if service.tenant == tenant_id]
    if services:
        raise WrongState(
            f"tenant '{tenant_id}' has services ({', '.join(services)}); delete them first"
        )
    kept = [
        reservation.id
        for reservation in state.cluster.advance_reservations.values()
        if reservation.tenant == tenant_id
    ]
    if kept:
        # Otherwise no job could use the reserved GPUs.
        raise WrongState(
            f"GPUs are reserved for tenant '{tenant_id}' ({', '.join(kept)}); cancel that first"
        )
    state.remove_tenant(tenant_id)
    state.changed = True
    outcome.writes.append(Removed(Tenant, tenant_id))
    data = (("tenant", tenant_id),)
    outcome.event("tenant_removed", now_ms, data)


def cancel(state: ControlState, command: Cancel, now_ms: int, outcome: Outcome) -> None:
    """Cancel what waits at once, and order what runs to stop."""
    record = state.job(command.job_id)
    array = record.job.array
    chosen = command.tasks
    if chosen is not None and array is None:
        raise WrongState(f"{display_name(record.job.id)} is not an array; cancel it as a whole")
    if chosen is not None:
        check_tasks_exist(record.job, chosen)
        _check_ranges(record, chosen)
    if array is None:
        if record.state is JobState.PENDING:
            cancel_pending(state, record, None, now_ms)
        elif record.only_task is not None:
            _cancel_running(state, record, None, now_ms, outcome)
    else:
        outcome.writes += cancel_pending(state, record, chosen, now_ms)
        for number, task in record.tasks.items():
            if task.allocation_id and (chosen is None or number in chosen):
                _cancel_running(state, record, number, now_ms, outcome)
    if record.has_ended:
        finish(state, record, now_ms, outcome)
    elif array is None:
        outcome.keep(record)
    else:
        update_tasks(state, record, now_ms, outcome)


def _cancel_running(
    state: ControlState, record: JobRecord, number: int | None, now_ms: int, outcome: Outcome
) -> None:
    """Order an attempt to stop; it is cancelled once it has ended."""
    if stop(state, record.task(number).allocation_id, CANCELLED, outcome):
        outcome.job_event(record.job, "cancelling", now_ms, task=number)


def _check_ranges(record: JobRecord, chosen: IntervalSet) -> None:
    """Reject what would split the waiting tasks of an array into very many ranges.

    The cost of each start and end of a task grows with them, for all users.
    """
    ranges = len(record.pending.minus(chosen).ranges)
    if ranges > max(MOST_RANGES, len(record.pending.ranges)):
        raise WrongState(
            f"the waiting tasks of {display_name(record.job.id)} would be in {ranges:,} separate "
            f"ranges; at most {MOST_RANGES:,} are supported. Cancel whole ranges of tasks instead"
        )


def reject_replica(job: Job, what: str) -> None:
    """Reject a change to a replica, which its service would undo."""
    if job.service:
        raise WrongState(
            f"{display_name(job.id)} is a replica of a service, which would replace it, so it "
            f"cannot be {what}; change the service instead ('tgpu service update')"
        )


def retry(state: ControlState, command: Retry, now_ms: int, outcome: Outcome) -> None:
    """Let a failed or cancelled job, or failed or cancelled tasks of an array, wait again.

    The store is read for a job whose end is no longer in memory.
    """
    job_id = command.job_id
    end = state.ended.get(job_id)
    if end is None:
        record = state.job(job_id)
        reject_replica(record.job, "retried")
        outcome.retried = _retry_tasks(state, record, command.cancelled, now_ms)
    elif end.record is None:
        raise WrongState(
            f"{display_name(job_id)} is completed; only a failed or cancelled job can be retried; "
            "'tgpu resubmit' runs it again as a new job"
        )
    else:
        record = end.record
        reject_replica(record.job, "retried")
        outcome.retried = _revive(state, record, command, now_ms)
    outcome.job_event(record.job, "retried", now_ms)
    if record.job.array is None:
        enqueue_if_ready(state, record, now_ms, outcome)
    else:
        update_tasks(state, record, now_ms, outcome)


def _retry_tasks(
    state: ControlState, record: JobRecord, cancelled: bool, now_ms: int
) -> IntervalSet:
    """Requeue the failed tasks of an array, with `cancelled` also cancelled ones; return them."""
    again = record.tasks_to_retry(cancelled=cancelled)
    if not again and record.tasks_to_retry(cancelled=True):
        raise WrongState(
            f"{display_name(record.job.id)} has no failed task to retry; those that were "
            "cancelled are retried with 'cancelled'"
        )
    if not again:
        raise WrongState(f"{display_name(record.job.id)} has no failed or cancelled task to retry")
    check_room(state, len(again))
    check_pending(state, [(record.job, len(again))])
    record.retry_tasks(again, waiting_clock(state, record, now_ms))
    state.count_queued(record.job, len(again))
    return again


def _revive(
    state: ControlState, record: JobRecord, command: Retry, now_ms: int
) -> IntervalSet | None:
    """Requeue a job that has ended; attempt numbers continue. Return the tasks of an array."""
    job = record.job
    unmet = _unmet(state, record)
    again = None
    if job.array is not None:
        # An array that ended without a failure can only retry its cancelled tasks.
        cancelled = command.cancelled or not record.tasks_to_retry(cancelled=False)
        again = _retry_tasks(state, record, cancelled, now_ms)
    else:
        check_room(state, 1)
        check_pending(state, [(job, 1)])
        task = record.task(None)
        task.move_to(JobState.PENDING)
        task.failures = task.misstarts = task.prolog_failures = task.most_members = 0
        task.stop_why = ""
        state.count_queued(job, 1)
    del state.ended[job.id]
    state.jobs[job.id] = record
    record.end_ms = record.reason = None
    record.expected_ms = 0
    for dependency, is_now_met in unmet:
        if is_now_met:
            record.clear_wait(dependency)
        else:
            wait_for_job(state, record, dependency)
    record.clear_wait(BACKOFF)
    wait_for_begin(state, record, now_ms)
    if record.is_waiting_on(NO_NODE):
        state.unplaced[job.id] = None
        state.new_nodes = True
    return again


def _unmet(state: ControlState, record: JobRecord) -> list[tuple[Dependency, bool]]:
    """The dependencies that were unmet when the job ended, and whether they are met now.

    A dependency that was met once stays met, even if the other job is retried.
    """
    unmet = []
    for dependency in record.job.dependencies:
        if not record.is_waiting_on(dependency):
            continue
        end = state.ended.get(dependency.job_id)
        is_now_met = end is not None and is_met(dependency.kind, end.state)
        if not is_now_met and dependency.job_id not in state.jobs:
            how = "is no longer known" if end is None else f"is already {end.state}"
            raise WrongState(
                f"{display_name(record.job.id)} depends on {display_name(dependency.job_id)} "
                f"({dependency.kind.value}), which {how}; "
                "retry that one first, or submit the job again"
            )
        unmet.append((dependency, is_now_met))
    return unmet


REMEMBERED = 1_000
"""How many corrections are remembered, since a batch is stored only after all its messages."""


def correct_usage(
    state: ControlState, message: CorrectUsage, now_ms: int, outcome: Outcome
) -> None:
    """Change the end of the attempt, and charge or take back the difference."""
    job, attempt = message.job, message.attempt
    before_ms = state.corrected_ends.get(attempt.allocation_id, attempt.end_ms)
    after_ms = attempt.start_ms + message.run_ms
    if message.run_ms < 0 or after_ms > now_ms:
        raise InvalidRequest(
            f"attempt {attempt.attempt} of {display_name(job.id)} cannot have run for "
            f"{message.run_ms / 1000:g} s: it started {(now_ms - attempt.start_ms) / 1000:.0f} s "
            "ago; give a shorter run time"
        )
    if after_ms != before_ms:
        sign = 1 if after_ms > before_ms else -1
        part = _interval(job, attempt, min(before_ms, after_ms), max(before_ms, after_ms))
        state.usage_totals.correct(part, sign)
        state.weekly_usage.add(part, sign)
        for account in (job.tenant, (job.tenant, job.user)):
            state.decayed_usage.correct(
                account, part.gpu_milli, part.start_ms, part.end_ms, now_ms, sign
            )
            state.charged[account] = None
        state.changed = True
    state.corrected_ends[attempt.allocation_id] = after_ms
    if len(state.corrected_ends) > REMEMBERED:
        del state.corrected_ends[next(iter(state.corrected_ends))]
    outcome.writes.append(replace(attempt, end_ms=after_ms))
    data = (
        ("attempt", attempt.attempt),
        ("from_ms", before_ms - attempt.start_ms),
        ("to_ms", message.run_ms),
        ("reason", message.reason),
    )
    outcome.job_event(job, "usage_corrected", now_ms, task=attempt.task, data=data)


def _interval(job: Job, attempt: AttemptRow, start_ms: int, end_ms: int) -> UsageInterval:
    """The resources of the attempt during this time."""
    placements = attempt.placements
    gpu_milli = sum(placement.gpu_milli for placement in placements)
    return UsageInterval(
        allocation_id=attempt.allocation_id,
        job_id=job.id,
        task=attempt.task,
        tenant=job.tenant,
        user=job.user,
        attempt=attempt.attempt,
        start_ms=start_ms,
        end_ms=end_ms,
        gpu_milli=gpu_milli,
        gpu_memory_mb=sum(placement.gpu_memory_mb for placement in placements),
        cpu_milli=sum(placement.cpu_milli for placement in placements),
        memory_mb=sum(placement.memory_mb for placement in placements),
        gpu_models=attempt.gpu_models or ((("", gpu_milli),) if gpu_milli else ()),
    )
