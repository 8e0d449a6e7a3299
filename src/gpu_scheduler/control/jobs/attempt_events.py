"""Facts come back by one door: what started, what ended and how, what is gone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpu_scheduler.control import services
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.gangs import can_shrink, is_elastic
from gpu_scheduler.control.job_record import JobRecord, TaskRecord, paused_until
from gpu_scheduler.control.jobs.lifecycle import (
    BACKOFF,
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    LEASE,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
    enqueue_if_ready,
    finish,
    update_tasks,
    waiting_clock,
)
from gpu_scheduler.control.messages import Checkpointed, Ended, Started
from gpu_scheduler.control.nodes import admin, inventory
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.ledger.decayed_usage import account_of
from gpu_scheduler.ledger.usage import interval_of
from gpu_scheduler.model.job import Job, JobState, display_name
from gpu_scheduler.model.launch import PROLOG
from gpu_scheduler.model.measurements import AttemptMeasure
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.service import Restart, Service
from gpu_scheduler.model.snapshot import Running
from gpu_scheduler.store.rows import AttemptRow, EventRow, RemovedAllocation

# --- Prologs and epilogs that failed: that is the fault of their node, not of the job.
#
# The node is set aside, so that it does not fail one job after the other. A job whose prolog failed
# has not run: it waits again and keeps its retries, up to so many times in a row. An epilog that
# fails changes nothing about how its job ended.


def kept_from_running(task: TaskRecord, fact: Ended) -> bool:
    """Tell whether an attempt ended because a prolog failed, and for no other reason."""
    has_begun = fact.ran or task.state is not JobState.SCHEDULED
    return not has_begun and not task.stop_why and any(one.hook == PROLOG for one in fact.hooks)


def state_after_hook_failure(state: ControlState, record: JobRecord, task: TaskRecord) -> JobState:
    """What becomes of a task whose prolog failed: it waits again, unless that never ends.

    A service that is to be kept alive is never given up.
    """
    task.prolog_failures += 1
    service = state.services.get(record.job.service)
    if service is not None and service.restart.policy is not Restart.NEVER:
        return JobState.PENDING
    may_help = task.prolog_failures < state.limits.max_prolog_failures
    return JobState.PENDING if may_help else JobState.FAILED


def with_hook_failures(task: TaskRecord, fact: Ended, state: JobState) -> Ended:
    """Say at the end of all attempts that there were several."""
    is_last = state is JobState.FAILED and kept_from_running(task, fact)
    if not is_last or task.prolog_failures < 2:
        return fact
    times = f"a prolog failed {task.prolog_failures} times in a row, so it is not tried again"
    return replace(fact, detail=f"{fact.detail}; {times}")


def note_hook_failure(
    state: ControlState,
    record: JobRecord,
    number: int | None,
    fact: Ended,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """Write down which hooks failed, and set their nodes aside."""
    job = record.job
    name = display_name(job.id) if number is None else f"{display_name(job.id)}, task {number}"
    for one in fact.hooks:
        data = (("node", one.node_id), ("hook", one.hook), ("detail", one.detail))
        outcome.writes.append(
            EventRow(
                at_ms=now_ms,
                kind="hook_failed",
                job_id=job.id,
                task=number,
                user=job.user,
                data=data,
            )
        )
        if state.limits.hook_failure_drains:
            why = f"the {one.hook} of {name} failed: {one.detail}"
            admin.set_aside(state, one.node_id, why, now_ms, outcome)


def goes_elsewhere(state: ControlState, task: TaskRecord, fact: Ended) -> bool:
    """Tell whether the next attempt cannot meet the prolog that failed, and need not pause."""
    if not kept_from_running(task, fact):
        return False
    nodes = [state.cluster.index.by_id.get(one.node_id) for one in fact.hooks if one.hook == PROLOG]
    return all(resources is None or not resources.node.takes_work for resources in nodes)


# --- Facts come back by one door: what started, what ended and how, what is gone.

SIGNALS = range(1, 32)
STORED_AFTER_MS = 10_000
"""Work that was saved so much later than what is stored of it is worth a write."""


def on_started(state: ControlState, fact: Started, now_ms: int, outcome: Outcome) -> None:
    """Every member of an attempt runs. A report about an attempt that has ended is ignored."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    if task.state is JobState.SCHEDULED:
        task.move_to(JobState.RUNNING)
        if record.job.service:
            state.unsettled_services[record.job.service] = None
        if number is not None:
            outcome.writes.append(record.task_row(number, task))
        outcome.keep(record)
        outcome.writes.append(
            EventRow(
                at_ms=now_ms,
                kind="running",
                job_id=record.job.id,
                task=number,
                user=record.job.user,
            )
        )


def on_checkpointed(state: ControlState, fact: Checkpointed, now_ms: int, outcome: Outcome) -> None:
    """An attempt has saved its work. What it saves every second is not stored every second."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    running = state.cluster.running[fact.allocation_id].running
    at_ms = max(running.allocation.start_ms, now_ms - fact.ago_ms)
    if at_ms <= running.checkpoint_ms:
        return
    state.cluster.revise(replace(running, checkpoint_ms=at_ms))
    if not task.saved_ms or at_ms - task.saved_ms >= STORED_AFTER_MS:
        task.saved_ms = at_ms
        outcome.writes.append(record.row() if number is None else record.task_row(number, task))


def on_ended(state: ControlState, fact: Ended, now_ms: int, outcome: Outcome) -> None:
    """An attempt ended: free what it held, charge it, and decide what becomes of the task."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    running = state.cluster.finish(fact.allocation_id)
    del state.by_allocation[fact.allocation_id]
    is_nodes_fault = bool(state.fenced.pop(fact.allocation_id, None)) or fact.stopped_by == LEASE
    state.changed = True
    ended_ms = _ended_ms(running, fact, now_ms)
    elapsed_ms = ended_ms - running.allocation.start_ms
    task.served_ms += elapsed_ms
    task.stop_why = _why_stopped(record, task, fact)
    fact = _of_a_gang(running, task, fact)
    new_state = _state_after(state, record, task, fact, elapsed_ms)
    fact = with_hook_failures(task, fact, new_state)
    is_kept = new_state is JobState.COMPLETED or record.job.service
    progress_ms = elapsed_ms if is_kept else min(elapsed_ms, _kept_ms(running, fact))
    measured = _charge(state, running, new_state, elapsed_ms - progress_ms, ended_ms, now_ms)
    why = _why_ended(task, fact, measured)
    row = _attempt_row(state, running.allocation, fact, new_state, why, ended_ms)
    outcome.writes += [RemovedAllocation(fact.allocation_id), row, *measured]
    inventory.settle(state, running.allocation, now_ms, outcome)
    note_hook_failure(state, record, number, fact, now_ms, outcome)
    admin.ended(state, running.allocation, now_ms, outcome)
    inventory.note_end(
        state,
        running.allocation,
        _died_at_once(state, record, task, fact, elapsed_ms),
        now_ms,
        outcome,
    )
    _learn(state, record, task, fact, new_state, elapsed_ms, now_ms)
    task.exit_code, task.signal = fact.exit_code, fact.signal
    services.look_again(state, record.job.service)
    if new_state is JobState.PREEMPTED:
        task.attained_ms += progress_ms
        # Only what gave way to others counts among those that its tenant allows.
        task.preemptions += not is_nodes_fault
        pauses = False
    elif new_state is JobState.PENDING:
        pauses = not fact.lost and not goes_elsewhere(state, task, fact)
        if record.job.service and pauses:
            services.note_restart(state, record.job.id, _how_ended(fact, why), now_ms, outcome)
    else:
        _end_task(state, record, number, new_state, why, ended_ms, now_ms, outcome)
        return
    _requeue(state, record, number, task, pauses, now_ms, outcome)


def _learn(  # noqa: PLR0917
    state: ControlState,
    record: JobRecord,
    task: TaskRecord,
    fact: Ended,
    new_state: JobState,
    elapsed_ms: int,
    now_ms: int,
) -> None:
    """Let the predictor know how long it ran, if it was the job that ended it."""
    goes_on = new_state is JobState.PENDING and _lost_a_member(record.job, task, fact)
    is_no_run = goes_on or task.stop_why or record.job.service or kept_from_running(task, fact)
    state.predictor.end(record.job, None if is_no_run else task.attained_ms + elapsed_ms, now_ms)


def _end_task(  # noqa: PLR0917
    state: ControlState,
    record: JobRecord,
    number: int | None,
    new_state: JobState,
    why: Reason | None,
    ended_ms: int,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """A task has ended for good; the job too, if it was the last one."""
    task = record.task(number)
    record.end_task(number, new_state)
    if number is not None:
        outcome.writes.append(record.task_row(number, task, end_ms=ended_ms))
    else:
        record.reason = why
        record.end_ms = ended_ms
    if record.has_ended:
        finish(state, record, now_ms, outcome)
    else:
        outcome.keep(record)
        outcome.writes.append(
            EventRow(
                at_ms=now_ms,
                kind=new_state.value,
                job_id=record.job.id,
                task=number,
                user=record.job.user,
            )
        )


def _ended_ms(running: Running, fact: Ended, now_ms: int) -> int:
    """When it was over. What is told late, as after an outage, is not charged for the outage.

    A clock of a node that jumped meanwhile takes nothing of what it ran for.
    """
    start_ms = running.allocation.start_ms
    if fact.at_ms is None:
        return max(start_ms, now_ms)
    return max(start_ms, min(now_ms, max(fact.at_ms, start_ms + fact.run_ms)))


def _kept_ms(running: Running, fact: Ended) -> int:
    """What of its run time need not be repeated: as its driver says, or up to what it saved."""
    return max(fact.progress_ms, running.checkpoint_ms - running.allocation.start_ms)


def _why_stopped(record: JobRecord, task: TaskRecord, fact: Ended) -> str:
    """Why the attempt was stopped; empty if it ended by itself.

    Who did all its work before the order to make way reached its node is done.
    """
    went_well = fact.ran and fact.exit_code == 0 and fact.signal is None
    if task.stop_why == PREEMPTED and went_well and not fact.stopped_by and not record.job.service:
        return ""
    return task.stop_why or (PREEMPTED if fact.stopped_by == LEASE else fact.stopped_by)


def _of_a_gang(running: Running, task: TaskRecord, fact: Ended) -> Ended:
    """A gang over nodes that did not begin as a whole has not run, whoever of it was the first."""
    if task.stop_why == NOT_BEGUN and running.allocation.spans_nodes:
        return replace(fact, ran=False)
    return fact


def _state_after(
    state: ControlState, record: JobRecord, task: TaskRecord, fact: Ended, elapsed_ms: int
) -> JobState:
    """What became of the task; of a replica its service decides."""
    if kept_from_running(task, fact):
        return state_after_hook_failure(state, record, task)
    if fact.ran:
        task.prolog_failures = 0
    if fact.ran and elapsed_ms >= state.limits.max_backoff_ms:
        # It ran for longer than any pause lasts: what goes wrong from here on is a new row.
        task.misstarts = task.most_members = 0
    service = state.services.get(record.job.service) if record.job.service else None
    if service is not None and task.stop_why != CANCELLED:
        return _replica_became(service, task, fact, elapsed_ms)
    return _next_state(state, record, task, fact)


def _next_state(state: ControlState, record: JobRecord, task: TaskRecord, fact: Ended) -> JobState:
    """The state that follows from how the attempt ended and why it was stopped."""
    if task.stop_why == PREEMPTED:
        return JobState.PREEMPTED
    if task.stop_why == CANCELLED:
        return JobState.CANCELLED
    if task.stop_why in {TIMEOUT, NODE_LOST, GPU_MEMORY, GPU_IDLE}:
        return JobState.FAILED
    if task.stop_why == NOT_BEGUN and not fact.ran:
        task.misstarts += 1
        may_help = task.misstarts < state.limits.max_misstarts
        return JobState.PENDING if may_help else JobState.FAILED
    if fact.lost and task.state is JobState.SCHEDULED:
        return JobState.PENDING
    if fact.exit_code == 0 and fact.signal is None:
        return JobState.COMPLETED
    return _after_failure(state, record, task, fact)


def _after_failure(
    state: ControlState, record: JobRecord, task: TaskRecord, fact: Ended
) -> JobState:
    """What follows when an attempt failed by itself, or lost a member."""
    if _lost_a_member(record.job, task, fact):
        task.misstarts += 1
        if task.misstarts < state.limits.max_misstarts:
            if _was_killed(fact):
                task.most_members = task.members - 1
            return JobState.PENDING
    if task.failures < record.job.retries and _may_help(record, fact):
        task.failures += 1
        return JobState.PENDING
    return JobState.FAILED


def _lost_a_member(job: Job, task: TaskRecord, fact: Ended) -> bool:
    """Tell whether the others of a gang can go on without the member that is gone.

    It is gone with its node or its record, or was killed, though not by us.
    """
    if not is_elastic(job) or not fact.ran or task.stop_why:
        return False
    is_unknown = fact.exit_code is None and fact.signal is None
    return is_unknown or (_was_killed(fact) and can_shrink(job, task))


def _was_killed(fact: Ended) -> bool:
    """Tell whether a signal ended it, or its program, of which a shell says 128 and the number."""
    return fact.signal is not None or (fact.exit_code or 0) - 128 in SIGNALS


def _replica_became(service: Service, task: TaskRecord, fact: Ended, elapsed_ms: int) -> JobState:
    """The same for a replica of a service: its restart policy decides what follows its own end.

    What ends it from outside (another job, its node) is no fault of its own: it goes on elsewhere.
    """
    if task.stop_why in {PREEMPTED, NODE_LOST}:
        task.stop_why = PREEMPTED
        return JobState.PREEMPTED
    if fact.lost and task.state is JobState.SCHEDULED:
        return JobState.PENDING
    went_well = fact.exit_code == 0 and fact.signal is None and not task.stop_why
    policy = service.restart.policy
    if policy is Restart.NEVER or (policy is Restart.ON_FAILURE and went_well):
        return JobState.COMPLETED if went_well else JobState.FAILED
    was_good = fact.ran and elapsed_ms >= service.restart.reset_after_ms
    task.failures = 1 if was_good else task.failures + 1
    return JobState.PENDING


def _how_ended(fact: Ended, why: Reason | None) -> str:
    if why is not None:
        return str(why)
    return f"signal {fact.signal}" if fact.signal is not None else f"exit code {fact.exit_code}"


def _died_at_once(
    state: ControlState, record: JobRecord, task: TaskRecord, fact: Ended, elapsed_ms: int
) -> str:
    """The command of an attempt that died as soon as it had begun, else nothing."""
    if task.stop_why or not fact.ran or (fact.exit_code == 0 and fact.signal is None):
        return ""
    if elapsed_ms >= state.limits.quarantine_within_ms:
        return ""
    return " ".join(record.job.command) or record.job.name or record.job.id


def _may_help(record: JobRecord, fact: Ended) -> bool:
    """Tell whether another attempt can end in another way."""
    if not fact.ran:
        return False
    chosen = record.job.retry_exit_codes
    return not chosen or fact.exit_code in chosen


def _why_ended(task: TaskRecord, fact: Ended, measured: list[AttemptMeasure]) -> Reason | None:
    """Why an attempt ended, where its exit code does not say it all."""
    detail = (("detail", fact.detail),)
    if task.stop_why in {GPU_MEMORY, GPU_IDLE}:
        warning = measured[0].warning if measured else ""
        return Reason(ReasonCode(task.stop_why), (("detail", warning),))
    if task.stop_why == TIMEOUT:
        return Reason(ReasonCode.TIME_LIMIT)
    if task.stop_why == NODE_LOST:
        return Reason(ReasonCode.NODE_LOST)
    if task.stop_why == NOT_BEGUN:
        late = fact.detail or "no agent began it in time"
        return Reason(ReasonCode.NOT_STARTED, (("detail", late),))
    if task.stop_why:
        return None
    if not fact.ran:
        return Reason(ReasonCode.NOT_STARTED, detail)
    if fact.exit_code is None and fact.signal is None:
        return Reason(ReasonCode.EXIT_UNKNOWN, detail)
    return Reason(ReasonCode.ENDED_BY, detail) if fact.detail else None


def _attempt_row(
    state: ControlState,
    allocation: Allocation,
    fact: Ended,
    new_state: JobState,
    why: Reason | None,
    ended_ms: int,
) -> AttemptRow:
    return AttemptRow(
        allocation_id=allocation.id,
        job_id=allocation.job_id,
        task=allocation.task,
        attempt=allocation.attempt,
        placements=allocation.placements,
        start_ms=allocation.start_ms,
        end_ms=ended_ms,
        state=_shown_state(fact, new_state),
        exit_code=fact.exit_code,
        signal=fact.signal,
        detail=fact.detail or ("" if why is None else str(why)),
        gpu_models=_models_held(state, allocation),
    )


def _shown_state(fact: Ended, state: JobState) -> JobState:
    """How an attempt that is followed by another one is remembered."""
    if state is not JobState.PENDING:
        return state
    return JobState.COMPLETED if (fact.exit_code, fact.signal) == (0, None) else JobState.FAILED


def _models_held(state: ControlState, allocation: Allocation) -> tuple[tuple[str, int], ...]:
    """How much of which GPU model, in the order of names."""
    held: dict[str, int] = {}
    for placement in allocation.placements:
        for share in placement.devices:
            model = _model_of(state, placement.node_id, share.index)
            held[model] = held.get(model, 0) + share.share_milli
    return tuple(sorted(held.items()))


def _model_of(state: ControlState, node_id: str, index: int) -> str:
    devices = state.cluster.index.resources(node_id).node.devices
    return next(device.model for device in devices if device.index == index)


def _requeue(  # noqa: PLR0917
    state: ControlState,
    record: JobRecord,
    number: int | None,
    task: TaskRecord,
    pauses: bool,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """The task waits again, with what it has attained; after a failure only in a while."""
    task.clock_ms = waiting_clock(state, record, now_ms)
    task.allocation_id = ""
    was_preempted = task.stop_why == PREEMPTED
    task.stop_why = ""
    state.count_queued(record.job, 1)
    if pauses:
        task.move_to(JobState.FAILED)
        task.resume_ms = now_ms + _pause_ms(state, record, task)
        state.set_timer(task.resume_ms, BACKOFF, record.job.id, number)
    elif was_preempted:
        task.move_to(JobState.PREEMPTED)
    task.move_to(JobState.PENDING)
    kind = "preempted" if was_preempted else "requeued"
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind=kind, job_id=record.job.id, task=number, user=record.job.user)
    )
    if number is not None:
        outcome.writes.append(record.task_row(number, task))
    if number is None:
        if task.resume_ms:
            record.wait_on(BACKOFF, paused_until(task.resume_ms))
        enqueue_if_ready(state, record, now_ms, outcome)
        return
    if not task.resume_ms:
        record.pending = record.pending.with_number(number)
    update_tasks(state, record, now_ms, outcome)


def _pause_ms(state: ControlState, record: JobRecord, task: TaskRecord) -> int:
    """How long to wait after a failure: twice as long each time, up to a bound."""
    service = state.services.get(record.job.service)
    if service is not None:
        return service.restart.pause_ms(task.failures + task.prolog_failures)
    ends = task.failures + task.misstarts + task.prolog_failures
    delay_ms = state.limits.backoff_ms << max(0, ends - 1)
    return min(delay_ms, state.limits.max_backoff_ms)


def _charge(
    state: ControlState,
    running: Running,
    new_state: JobState,
    lost_ms: int,
    ended_ms: int,
    now_ms: int,
) -> list[AttemptMeasure]:
    """A finished interval becomes usage and the next turn's shares; says what was measured."""
    measured = state.gpu_meter.take(running.allocation)
    job = running.job
    allocation = running.allocation
    gpu_milli = allocation.gpu_milli
    for account in (account_of(job.tenant, None), account_of(job.tenant, job.user)):
        state.decayed_usage.release(account, gpu_milli, now_ms, held_until_ms=ended_ms)
    state.charged[job.tenant] = state.charged[job.tenant, job.user] = None

    interval = interval_of(
        job,
        allocation,
        end_ms=ended_ms,
        model_of=partial(_model_of, state),
        outcome=new_state,
        lost_ms=lost_ms if new_state in {JobState.PREEMPTED, JobState.PENDING} else 0,
        energy_uj=sum(row.measure.energy_uj for row in measured),
    )
    charged = state.usage_totals.charge(interval)
    if charged is not None:
        state.weekly_usage.add(charged)
    return measured
