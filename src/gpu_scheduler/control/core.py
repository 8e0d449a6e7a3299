"""`Core.apply(command or fact, now) -> writes, effects`: the synchronous heart of every driver."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control import observe
from gpu_scheduler.control.book import Book, Limits
from gpu_scheduler.control.cycle import CANCELLED, run_cycle, stop
from gpu_scheduler.control.eligible import (
    HELD,
    cancel_pending,
    clear,
    enqueue_if_ready,
    finish,
    leave_queue,
    make_eligible,
)
from gpu_scheduler.control.life import NO_TASKS, JobLife
from gpu_scheduler.control.messages import (
    Cancel,
    Checkpointed,
    Command,
    Ended,
    Fact,
    Hold,
    NodeFenced,
    Outcome,
    Release,
    Reprioritise,
    Retry,
    RunCycle,
    SetNode,
    SetPool,
    SetTenant,
    Started,
    Submit,
)
from gpu_scheduler.control.submit import submit
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import InternalError, WrongState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.states import JobState
from gpu_scheduler.predict.socket import Predictor


class Core:
    """One writer. An error leaves everything as it was before the message."""

    def __init__(self, policy: Policy, predictor: Predictor, limits: Limits | None = None) -> None:
        """Start empty."""
        self.book = Book(policy, predictor, limits or Limits())

    def apply(self, message: Command | Fact, now_ms: int) -> Outcome:
        """Take in one message."""
        outcome = Outcome()
        match message:
            case Submit(job):
                submit(self.book, job, now_ms, outcome)
            case RunCycle():
                run_cycle(self.book, now_ms, outcome)
            case Started(allocation_id):
                observe.started(self.book, allocation_id, now_ms, outcome)
            case Ended():
                observe.ended(self.book, message, now_ms, outcome)
            case Checkpointed(allocation_id):
                self._checkpointed(allocation_id, now_ms)
            case NodeFenced(node_id):
                observe.node_fenced(self.book, node_id, now_ms, outcome)
            case _:
                self._command(message, now_ms, outcome)
        return outcome

    def next_timer_ms(self) -> int | None:
        """When `RunCycle` should come at the latest."""
        return self.book.next_timer_ms()

    @property
    def wants_cycle(self) -> bool:
        """Tell whether something has changed that may let a job start."""
        return self.book.changed and len(self.book.picture.queue) > 0

    def _command(self, message: Command | Fact, now_ms: int, outcome: Outcome) -> None:
        book = self.book
        match message:
            case SetNode(node):
                book.picture.set_node(node)
                book.changed = True
                outcome.writes.append(node)
            case SetTenant(tenant):
                book.picture.set_tenant(tenant)
                book.changed = True
                outcome.writes.append(tenant)
            case SetPool(pool):
                book.picture.set_pool(pool)
                book.changed = True
            case Hold(job_id):
                self._hold(book.life(job_id), outcome)
            case Release(job_id):
                life = book.life(job_id)
                life.job = replace(life.job, hold=False)
                clear(book, life, HELD, now_ms, outcome)
            case Reprioritise(job_id, priority):
                self._reprioritise(book.life(job_id), priority, now_ms, outcome)
            case Cancel():
                self._cancel(message, now_ms, outcome)
            case Retry(job_id):
                self._retry(job_id, now_ms, outcome)
            case _:
                raise InternalError(f"the core does not know {type(message).__name__}")

    def _hold(self, life: JobLife, outcome: Outcome) -> None:
        if life.state is not JobState.PENDING:
            raise WrongState(f"job {life.job.id} is {life.state}; only a pending job can be held")
        leave_queue(self.book, life)
        life.job = replace(life.job, hold=True)
        life.waiting_on[HELD] = None
        life.reason = Reason(ReasonCode.HELD)
        outcome.writes.append(life.row())

    def _reprioritise(self, life: JobLife, priority: int, now_ms: int, outcome: Outcome) -> None:
        if life.state is not JobState.PENDING:
            raise WrongState(
                f"job {life.job.id} is {life.state}; the priority of a pending job can be changed"
            )
        job = replace(life.job, priority=priority)
        leave_queue(self.book, life)
        life.job = job
        enqueue_if_ready(self.book, life, now_ms, outcome)

    def _cancel(self, command: Cancel, now_ms: int, outcome: Outcome) -> None:
        book = self.book
        life = book.life(command.job_id)
        if command.tasks is not None and life.job.array is None:
            raise WrongState(f"job {life.job.id} is not an array; cancel it as a whole")
        waits = life.job.array is None and life.state is JobState.PENDING
        if life.job.array is not None:
            leave_queue(book, life)
            chosen = command.tasks or life.job.array.tasks
            kept = life.pending.minus(chosen)
            life.pending = life.pending.minus(kept)
            cancel_pending(book, life, now_ms)
            life.pending = kept
        elif waits:
            cancel_pending(book, life, now_ms)
        for number, task in list(life.tasks.items()):
            wanted = command.tasks is None or (number is not None and number in command.tasks)
            if wanted and task.allocation_id and task.state is not JobState.CANCELLED:
                stop(book, task.allocation_id, CANCELLED, outcome)
        if life.has_ended:
            finish(book, life, now_ms, outcome)
        elif life.pending:
            enqueue_if_ready(book, life, now_ms, outcome)
        else:
            outcome.writes.append(life.row())

    def _retry(self, job_id: str, now_ms: int, outcome: Outcome) -> None:
        """Let the failed and cancelled tasks of a living array wait again."""
        book = self.book
        life = book.life(job_id)
        again = life.states.pop(JobState.FAILED, NO_TASKS)
        again = again.union(life.states.pop(JobState.CANCELLED, NO_TASKS))
        if not again:
            raise WrongState(f"job {job_id} has no failed or cancelled task to retry")
        leave_queue(book, life)
        life.pending = life.pending.union(again)
        book.queued_tasks += len(again)
        make_eligible(book, life, now_ms, outcome)

    def _checkpointed(self, allocation_id: str, now_ms: int) -> None:
        if allocation_id in self.book.by_allocation:
            running = self.book.picture.running[allocation_id].running
            self.book.picture.revise(replace(running, checkpoint_ms=now_ms))
