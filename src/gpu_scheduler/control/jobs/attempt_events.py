"""Reports about attempts: started, checkpointed, ended.

A report of a node comes in. The end of an attempt frees its resources, charges its usage, teaches
the predictor, and decides the next state of the task: ended, or waiting again. A report about an
allocation that has ended is ignored, so reports may be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpu_scheduler.control import services
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import JobRecord, TaskRecord, paused_until
from gpu_scheduler.control.jobs.queueing import (
    BACKOFF,
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
from gpu_scheduler.control.jobs.retries import AttemptEnd, backoff_ms, failed_in_prolog, state_after
from gpu_scheduler.control.messages import Checkpointed, Ended, Started
from gpu_scheduler.control.nodes import admin, inventory
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.ledger.decayed_usage import account_of
from gpu_scheduler.ledger.usage import interval_of
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import JobState, display_name
from gpu_scheduler.model.launch import PROLOG
from gpu_scheduler.model.measurements import AttemptMeasure
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.store.rows import AttemptRow, Removed

STORED_AFTER_MS = 10_000
"""A checkpoint is stored only if it is this much later than the stored one."""
CAUSE_NOT_REPORTED = "its node did not report the cause"


def on_started(state: ControlState, fact: Started, now_ms: int, outcome: Outcome) -> None:
    """Every member of an attempt runs. A report about an attempt that has ended is ignored."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    if task.state is JobState.SCHEDULED:
        task.move_to(JobState.RUNNING)
        if record.job.service:
            state.services_to_reconcile[record.job.service] = None
        if number is not None:
            outcome.writes.append(record.task_row(number, task))
        outcome.keep(record)
        outcome.job_event(record.job, "running", now_ms, task=number)


def on_checkpointed(state: ControlState, fact: Checkpointed, now_ms: int, outcome: Outcome) -> None:
    """An attempt has saved its work. Checkpoints in quick succession are not all stored."""
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
    """An attempt ended: free its resources, charge its usage, and decide the next state."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    running = state.cluster.finish(fact.allocation_id)
    allocation = running.allocation
    del state.by_allocation[fact.allocation_id]
    state.container_phases.pop(fact.allocation_id, None)
    was_node_loss = bool(state.fenced.pop(fact.allocation_id, None)) or fact.stopped_by == LEASE
    state.changed = True
    task.stop_why = _why_stopped(record, task, fact)
    record.image_digest = record.image_digest or fact.image_digest
    if task.stop_why == NOT_BEGUN and allocation.spans_nodes:
        # A gang that did not start as a whole counts as not run, even if some members started.
        fact = replace(fact, ran=False)
    end = AttemptEnd(record, number, task, fact, running, _ended_ms(state, running, fact, now_ms))
    task.served_ms += end.elapsed_ms
    new_state = state_after(state, end)
    is_prolog_failure = failed_in_prolog(task, fact)
    if is_prolog_failure and new_state is JobState.FAILED and task.prolog_failures > 1:
        times = f"a prolog failed {task.prolog_failures} times in a row; giving up"
        fact = replace(fact, detail=f"{fact.detail}; {times}")
        end = replace(end, fact=fact)
    is_kept = new_state is JobState.COMPLETED or record.job.service
    saved_ms = max(fact.progress_ms, running.checkpoint_ms - allocation.start_ms)
    progress_ms = end.elapsed_ms if is_kept else min(end.elapsed_ms, saved_ms)

    measured = _charge(state, end, new_state, end.elapsed_ms - progress_ms, now_ms)
    why = _why_ended(task, fact, measured)
    row = _attempt_row(state, end, new_state, why)
    outcome.writes += [Removed(Allocation, fact.allocation_id), row, *measured]
    if why is not None and why.code is ReasonCode.EXIT_UNKNOWN:
        data = (("attempt", allocation.attempt), ("cause", str(why.get("detail"))))
        outcome.job_event(record.job, "exit_unknown", now_ms, task=number, data=data)
    inventory.apply_pending_report(state, allocation, now_ms, outcome)
    _drain_after_hook_failure(state, end, now_ms, outcome)
    admin.on_ended(state, allocation, now_ms, outcome)
    died = _early_death(state, end)
    inventory.count_early_death(state, allocation, record.job.user, died, now_ms, outcome)
    # The predictor learns the run time, unless the attempt was stopped from outside.
    goes_on = new_state is JobState.PENDING and end.lost_a_member
    is_no_run = goes_on or task.stop_why or record.job.service or is_prolog_failure
    run_ms = None if is_no_run else task.attained_ms + end.elapsed_ms
    state.predictor.end(record.job, run_ms, now_ms)
    was_preempted = new_state is JobState.PREEMPTED and not was_node_loss
    # Services do not end by themselves: only their preemptions would count.
    if (was_preempted and not record.job.service) or run_ms is not None:
        state.preemption_risk.add(record.job, end.elapsed_ms, preempted=was_preempted)
    state.note_service(record.job, run_ms, now_ms)
    task.exit_code, task.signal = fact.exit_code, fact.signal
    services.mark(state, record.job.service)

    if new_state is JobState.PREEMPTED:
        task.attained_ms += progress_ms
        # The tenant limits evictions for other jobs; the loss of a node is not one.
        task.preemptions += not was_node_loss
        _requeue(state, end, now_ms, outcome, pauses=False)
    elif new_state is JobState.PENDING:
        pauses = not fact.lost and not (is_prolog_failure and _prolog_nodes_closed(state, fact))
        if record.job.service and pauses:
            code = f"exit code {fact.exit_code}"
            how = code if fact.signal is None else f"signal {fact.signal}"
            services.note_restart(state, record.job.id, str(why or how), now_ms, outcome)
        _requeue(state, end, now_ms, outcome, pauses=pauses)
    else:
        _end_task(state, end, new_state, why, now_ms, outcome)


# Failed prologs and epilogs are the fault of the node, not of the job. The node is drained, so that
# it does not fail one job after the other. A job whose prolog failed has not run: it waits again
# and keeps its retries, up to a limit. A failed epilog does not change how its job ended.


def _drain_after_hook_failure(
    state: ControlState, end: AttemptEnd, now_ms: int, outcome: Outcome
) -> None:
    """Write an event for each failed hook, and drain its node."""
    name = display_name(end.job.id)
    if end.number is not None:
        name += f", task {end.number}"
    for one in end.fact.hooks:
        data = (("node", one.node_id), ("hook", one.hook), ("detail", one.detail))
        outcome.job_event(end.job, "hook_failed", now_ms, task=end.number, data=data)
        if state.limits.hook_failure_drains:
            why = f"the {one.hook} of {name} failed: {one.detail}"
            admin.set_aside(state, one.node_id, why, now_ms, outcome)


def _prolog_nodes_closed(state: ControlState, fact: Ended) -> bool:
    """Tell whether no node with the failed prolog takes work, so that a retry needs no pause."""
    nodes = [state.cluster.index.by_id.get(one.node_id) for one in fact.hooks if one.hook == PROLOG]
    return all(resources is None or not resources.node.takes_work for resources in nodes)


def _ended_ms(state: ControlState, running: Running, fact: Ended, now_ms: int) -> int:
    """When the attempt ended. A report that was delayed by an outage does not charge the outage.

    The reported run time, which the node measured, is a lower bound. Where it does not cover a gap
    between two leaders whose duration is estimated, that gap is not charged.
    """
    start_ms = running.allocation.start_ms
    if fact.at_ms is None:
        return max(start_ms, now_ms)
    ended_ms = min(now_ms, max(fact.at_ms, start_ms + fact.run_ms))
    estimated_ms = state.calendar.gap_within(start_ms, ended_ms)
    return max(start_ms, min(ended_ms, max(ended_ms - estimated_ms, start_ms + fact.run_ms)))


def _why_stopped(record: JobRecord, task: TaskRecord, fact: Ended) -> str:
    """Why the attempt was stopped; empty if it ended by itself.

    A job that completed before the preemption order reached its node counts as completed.
    """
    succeeded = fact.ran and fact.exit_code == 0 and fact.signal is None
    if task.stop_why == PREEMPTED and succeeded and not fact.stopped_by and not record.job.service:
        return ""
    return task.stop_why or (PREEMPTED if fact.stopped_by == LEASE else fact.stopped_by)


def _early_death(state: ControlState, end: AttemptEnd) -> str:
    """The command of an attempt that failed right after its start, otherwise empty."""
    is_early = end.elapsed_ms < state.limits.quarantine_within_ms
    if end.task.stop_why or not end.fact.ran or end.succeeded or not is_early:
        return ""
    return " ".join(end.job.command) or end.job.name or end.job.id


def _why_ended(task: TaskRecord, fact: Ended, measured: list[AttemptMeasure]) -> Reason | None:
    """The reason of an end that the exit code alone does not explain."""
    detail = (("detail", fact.detail),)
    if task.stop_why in {GPU_MEMORY, GPU_IDLE}:
        warning = measured[0].warning if measured else ""
        return Reason(ReasonCode(task.stop_why), (("detail", warning),))
    if task.stop_why == TIMEOUT:
        return Reason(ReasonCode.TIME_LIMIT)
    if task.stop_why == NODE_LOST:
        return Reason(ReasonCode.NODE_LOST)
    if task.stop_why == NOT_BEGUN:
        late = fact.detail or "no agent started it in time"
        return Reason(ReasonCode.NOT_STARTED, (("detail", late),))
    if task.stop_why:
        return None
    if not fact.ran:
        return Reason(ReasonCode.NOT_STARTED, detail)
    if fact.exit_code is None and fact.signal is None:
        return Reason(ReasonCode.EXIT_UNKNOWN, (("detail", fact.detail or CAUSE_NOT_REPORTED),))
    return Reason(ReasonCode.ENDED_BY, detail) if fact.detail else None


def _attempt_row(
    state: ControlState, end: AttemptEnd, new_state: JobState, why: Reason | None
) -> AttemptRow:
    """The row of the attempt. One that is retried is failed or completed there, not pending."""
    allocation, fact = end.running.allocation, end.fact
    if new_state is JobState.PENDING:
        new_state = JobState.COMPLETED if end.succeeded else JobState.FAILED
    held: dict[str, int] = {}
    for placement in allocation.placements:
        for share in placement.devices:
            model = _model_of(state, placement.node_id, share.index)
            held[model] = held.get(model, 0) + share.share_milli
    return AttemptRow(
        allocation_id=allocation.id,
        job_id=allocation.job_id,
        task=allocation.task,
        attempt=allocation.attempt,
        placements=allocation.placements,
        start_ms=allocation.start_ms,
        end_ms=end.ended_ms,
        state=new_state,
        exit_code=fact.exit_code,
        signal=fact.signal,
        detail=fact.detail or (str(why) if why is not None else end.task.stop_cause),
        gpu_models=tuple(sorted(held.items())),
    )


def _model_of(state: ControlState, node_id: str, index: int) -> str:
    devices = state.cluster.index.resources(node_id).node.devices
    return next(device.model for device in devices if device.index == index)


def _end_task(
    state: ControlState,
    end: AttemptEnd,
    new_state: JobState,
    why: Reason | None,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """A task has ended and is not retried; the job ends with its last task."""
    record, number = end.record, end.number
    record.end_task(number, new_state)
    if number is not None:
        outcome.writes.append(record.task_row(number, end.task, end_ms=end.ended_ms))
    else:
        record.reason = why
        record.end_ms = end.ended_ms
    if record.has_ended:
        finish(state, record, now_ms, outcome)
    else:
        outcome.keep(record)
        outcome.job_event(record.job, new_state.value, now_ms, task=number)


def _requeue(
    state: ControlState, end: AttemptEnd, now_ms: int, outcome: Outcome, *, pauses: bool
) -> None:
    """The task waits again and keeps its progress; after a failure it pauses first."""
    record, number, task = end.record, end.number, end.task
    task.clock_ms = waiting_clock(state, record, now_ms)
    task.allocation_id = ""
    was_preempted = task.stop_why == PREEMPTED
    task.stop_why = ""
    state.count_queued(record.job, 1)
    if pauses:
        task.move_to(JobState.FAILED)
        task.resume_ms = now_ms + backoff_ms(state, record, task)
        state.set_timer(task.resume_ms, BACKOFF, record.job.id, number)
    elif was_preempted:
        task.move_to(JobState.PREEMPTED)
    task.move_to(JobState.PENDING)
    kind = "preempted" if was_preempted else "requeued"
    outcome.job_event(record.job, kind, now_ms, task=number)
    if number is None:
        if task.resume_ms:
            record.wait_on(BACKOFF, paused_until(task.resume_ms))
        enqueue_if_ready(state, record, now_ms, outcome)
        return
    outcome.writes.append(record.task_row(number, task))
    if not task.resume_ms:
        record.pending = record.pending.with_number(number)
    update_tasks(state, record, now_ms, outcome)


def _charge(
    state: ControlState, end: AttemptEnd, new_state: JobState, lost_ms: int, now_ms: int
) -> list[AttemptMeasure]:
    """Charge the usage of an attempt; return its measurements."""
    job, allocation = end.running.job, end.running.allocation
    measured = state.gpu_meter.take(allocation)
    for account in (account_of(job.tenant, None), account_of(job.tenant, job.user)):
        state.decayed_usage.release(
            account, allocation.gpu_milli, now_ms, held_until_ms=end.ended_ms
        )
    state.projected_usage.remove(allocation.id)
    state.charged[job.tenant] = state.charged[job.tenant, job.user] = None
    interval = interval_of(
        job,
        allocation,
        end_ms=end.ended_ms,
        model_of=partial(_model_of, state),
        outcome=new_state,
        lost_ms=lost_ms if new_state in {JobState.PREEMPTED, JobState.PENDING} else 0,
        energy_uj=sum(row.measure.energy_uj for row in measured),
    )
    charged = state.usage_totals.charge(interval)
    if charged is not None:
        state.weekly_usage.add(charged)
    return measured
