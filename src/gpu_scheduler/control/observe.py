"""Facts come back by one door: what started, what ended and how, what is gone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpu_scheduler.control import fleet
from gpu_scheduler.control.book import Book
from gpu_scheduler.control.eligible import (
    BACKOFF,
    enqueue_if_ready,
    finish,
    update_tasks,
    waiting_clock,
)
from gpu_scheduler.control.life import JobLife, TaskLife, paused_until
from gpu_scheduler.control.messages import Ended, Outcome
from gpu_scheduler.control.stopping import (
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
    stop,
)
from gpu_scheduler.ledger.interval import interval_of
from gpu_scheduler.ledger.shares import account_of
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.measures import AttemptMeasure
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.snapshot import Running
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.rows import AttemptRow, EventRow, RemovedAllocation


def started(book: Book, allocation_id: str, now_ms: int, outcome: Outcome) -> None:
    """All members run. A fact about an allocation that is held no more changes nothing."""
    found = book.running(allocation_id)
    if found is None:
        return
    life, number, task = found
    if task.state is JobState.SCHEDULED:
        task.move_to(JobState.RUNNING)
        if number is not None:
            outcome.writes.append(life.task_row(number, task))
        outcome.writes.append(life.row())
        outcome.writes.append(
            EventRow(
                at_ms=now_ms, kind="running", job_id=life.job.id, task=number, user=life.job.user
            )
        )


def ended(book: Book, fact: Ended, now_ms: int, outcome: Outcome) -> None:
    """An attempt ended: free what it held, charge it, and decide what becomes of the task."""
    found = book.running(fact.allocation_id)
    if found is None:
        return
    life, number, task = found
    running = book.picture.finish(fact.allocation_id)
    del book.by_allocation[fact.allocation_id]
    book.fenced.pop(fact.allocation_id, None)
    book.changed = True
    elapsed_ms = max(0, now_ms - running.allocation.start_ms)
    task.served_ms += elapsed_ms
    task.stop_why = task.stop_why or fact.stopped_by
    state = _what_became(book, life, task, fact)
    progress_ms = (
        min(elapsed_ms, fact.progress_ms) if state is not JobState.COMPLETED else elapsed_ms
    )
    measured = _charge(book, running, state, elapsed_ms - progress_ms, now_ms)
    outcome.writes.append(RemovedAllocation(fact.allocation_id))
    why = _why_ended(task, fact, measured)
    outcome.writes.append(_attempt_row(book, running.allocation, fact, state, why, now_ms))
    outcome.writes += measured
    fleet.settle(book, running.allocation, now_ms, outcome)
    fleet.note_end(
        book, running.allocation, _died_at_once(book, life, task, fact, elapsed_ms), now_ms, outcome
    )
    run_ms = None if task.stop_why else task.attained_ms + elapsed_ms
    book.predictor.end(life.job, run_ms, now_ms)
    task.exit_code, task.signal = fact.exit_code, fact.signal
    if state in {JobState.PREEMPTED, JobState.PENDING}:
        if state is JobState.PREEMPTED:
            task.attained_ms += progress_ms
            task.preemptions += 1
        pauses = state is JobState.PENDING and not fact.lost
        _requeue(book, life, number, task, pauses, now_ms, outcome)
        return
    life.end_task(number, state)
    if number is not None:
        outcome.writes.append(life.task_row(number, task, end_ms=now_ms))
    else:
        life.reason = why
    if life.has_ended:
        finish(book, life, now_ms, outcome)
    else:
        outcome.writes.append(life.row())
        outcome.writes.append(
            EventRow(
                at_ms=now_ms, kind=state.value, job_id=life.job.id, task=number, user=life.job.user
            )
        )


def node_fenced(book: Book, node_id: str, now_ms: int, outcome: Outcome) -> None:
    """A node is dead for certain: what ran there alone has ended, and may be repeated elsewhere.

    A gang with members on other nodes is ordered to stop there, and holds all it has until that is
    known to have happened.
    """
    slot = book.picture.index.slot(node_id)
    lost = list(book.picture.by_node.get(slot.ordinal, {}))
    node = replace(slot.node, state=NodeState.LOST)
    book.picture.set_node(node)
    book.changed = True
    outcome.writes.append(node)
    for allocation_id in lost:
        found = book.running(allocation_id)
        if found is None:
            continue
        life, _, task = found
        why = PREEMPTED if life.job.requeue_on_node_loss else NODE_LOST
        placements = book.picture.running[allocation_id].running.allocation.placements
        dead = book.fenced.setdefault(allocation_id, set())
        dead.add(node_id)
        if dead.issuperset(placement.node_id for placement in placements):
            task.stop_why = task.stop_why or why
            ended(book, Ended(allocation_id, exit_code=None), now_ms, outcome)
        else:
            stop(book, allocation_id, why, outcome)


def _what_became(book: Book, life: JobLife, task: TaskLife, fact: Ended) -> JobState:
    """The state that follows from how the attempt ended and why it was stopped."""
    if task.stop_why == PREEMPTED:
        return JobState.PREEMPTED
    if task.stop_why == CANCELLED:
        return JobState.CANCELLED
    if task.stop_why in {TIMEOUT, NODE_LOST, GPU_MEMORY, GPU_IDLE}:
        return JobState.FAILED
    if task.stop_why == NOT_BEGUN and not fact.ran:
        task.misstarts += 1
        may_help = task.misstarts < book.limits.max_misstarts
        return JobState.PENDING if may_help else JobState.FAILED
    if fact.lost and task.state is JobState.SCHEDULED:
        return JobState.PENDING
    if fact.exit_code == 0 and fact.signal is None:
        return JobState.COMPLETED
    if task.failures < life.job.retries and _may_help(life, fact):
        task.failures += 1
        return JobState.PENDING
    return JobState.FAILED


def _died_at_once(book: Book, life: JobLife, task: TaskLife, fact: Ended, elapsed_ms: int) -> str:
    """The command of an attempt that died as soon as it had begun, else nothing."""
    if task.stop_why or not fact.ran or (fact.exit_code == 0 and fact.signal is None):
        return ""
    if elapsed_ms >= book.limits.quarantine_within_ms:
        return ""
    return " ".join(life.job.command) or life.job.name or life.job.id


def _may_help(life: JobLife, fact: Ended) -> bool:
    """Tell whether another attempt can end in another way."""
    if not fact.ran:
        return False
    chosen = life.job.retry_exit_codes
    return not chosen or fact.exit_code in chosen


def _why_ended(task: TaskLife, fact: Ended, measured: list[AttemptMeasure]) -> Reason | None:
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
        return Reason(ReasonCode.NOT_STARTED, (("detail", "no agent began it in time"),))
    if task.stop_why:
        return None
    if not fact.ran:
        return Reason(ReasonCode.NOT_STARTED, detail)
    if fact.exit_code is None and fact.signal is None:
        return Reason(ReasonCode.EXIT_UNKNOWN, detail)
    return Reason(ReasonCode.ENDED_BY, detail) if fact.detail else None


def _attempt_row(
    book: Book,
    allocation: Allocation,
    fact: Ended,
    state: JobState,
    why: Reason | None,
    now_ms: int,
) -> AttemptRow:
    return AttemptRow(
        allocation_id=allocation.id,
        job_id=allocation.job_id,
        task=allocation.task,
        attempt=allocation.attempt,
        placements=allocation.placements,
        start_ms=allocation.start_ms,
        end_ms=now_ms,
        state=JobState.FAILED if state is JobState.PENDING else state,
        exit_code=fact.exit_code,
        signal=fact.signal,
        detail=fact.detail or ("" if why is None else str(why)),
        gpu_models=_models_held(book, allocation),
    )


def _models_held(book: Book, allocation: Allocation) -> tuple[tuple[str, int], ...]:
    """How much of which GPU model, in the order of names."""
    held: dict[str, int] = {}
    for placement in allocation.placements:
        for share in placement.devices:
            model = _model_of(book, placement.node_id, share.index)
            held[model] = held.get(model, 0) + share.share_milli
    return tuple(sorted(held.items()))


def _model_of(book: Book, node_id: str, index: int) -> str:
    devices = book.picture.index.slot(node_id).node.devices
    return next(device.model for device in devices if device.index == index)


def _requeue(  # noqa: PLR0917
    book: Book,
    life: JobLife,
    number: int | None,
    task: TaskLife,
    pauses: bool,
    now_ms: int,
    outcome: Outcome,
) -> None:
    """The task waits again, with what it has attained; after a failure only in a while."""
    task.clock_ms = waiting_clock(book, life, now_ms)
    task.allocation_id = ""
    was_preempted = task.stop_why == PREEMPTED
    task.stop_why = ""
    book.count_queued(life.job, 1)
    if pauses:
        task.move_to(JobState.FAILED)
        delay_ms = book.limits.backoff_ms << max(0, task.failures + task.misstarts - 1)
        task.resume_ms = now_ms + min(delay_ms, book.limits.max_backoff_ms)
        book.set_timer(task.resume_ms, BACKOFF, life.job.id, number)
    elif was_preempted:
        task.move_to(JobState.PREEMPTED)
    task.move_to(JobState.PENDING)
    kind = "preempted" if was_preempted else "requeued"
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind=kind, job_id=life.job.id, task=number, user=life.job.user)
    )
    if number is not None:
        outcome.writes.append(life.task_row(number, task))
    if number is None:
        if task.resume_ms:
            life.wait_on(BACKOFF, paused_until(task.resume_ms))
        enqueue_if_ready(book, life, now_ms, outcome)
        return
    if not task.resume_ms:
        life.pending = life.pending.with_number(number)
    update_tasks(book, life, now_ms, outcome)


def _charge(
    book: Book, running: Running, state: JobState, lost_ms: int, now_ms: int
) -> list[AttemptMeasure]:
    """A finished interval becomes usage and the next turn's shares; says what was measured."""
    measured = book.gauges.take(running.allocation)
    job = running.job
    allocation = running.allocation
    gpu_milli = allocation.gpu_milli
    book.shares.release(account_of(job.tenant, None), gpu_milli, now_ms)
    book.shares.release(account_of(job.tenant, job.user), gpu_milli, now_ms)
    book.charged[job.tenant] = book.charged[job.tenant, job.user] = None

    interval = interval_of(
        job,
        allocation,
        end_ms=now_ms,
        model_of=partial(_model_of, book),
        outcome=state,
        lost_ms=lost_ms if state in {JobState.PREEMPTED, JobState.PENDING} else 0,
        energy_uj=sum(row.measure.energy_uj for row in measured),
    )
    charged = book.accounts.charge(interval)
    if charged is not None:
        book.weeks.add(charged)
    return measured
