"""`Core.apply(command or fact, now) -> writes, effects`: the synchronous heart of every driver."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control import commands, observe
from gpu_scheduler.control.book import Book, Limits
from gpu_scheduler.control.cycle import run_cycle
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
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.node import Node
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
            case SetNode() | SetTenant() | SetPool():
                self._set(message, outcome)
            case _:
                self._command(message, now_ms, outcome)
        return outcome

    def next_timer_ms(self) -> int | None:
        """When `RunCycle` should come at the latest."""
        return self.book.next_timer_ms()

    @property
    def wants_cycle(self) -> bool:
        """Tell whether something has changed that may let a job start."""
        book = self.book
        if book.new_nodes and book.unplaced:
            return True
        return book.changed and len(book.picture.queue) > 0

    def _set(self, message: SetNode | SetTenant | SetPool, outcome: Outcome) -> None:
        """What the cluster is made of, and who may have how much of it."""
        book = self.book
        match message:
            case SetNode(node):
                self._set_node(node)
                outcome.writes.append(node)
            case SetTenant(tenant):
                book.set_tenant(tenant)
                outcome.writes.append(tenant)
            case SetPool(pool):
                book.picture.set_pool(pool)
                outcome.writes.append(pool)
        book.changed = True

    def _set_node(self, node: Node) -> None:
        is_new = node.id not in self.book.picture.index.by_id
        self.book.picture.set_node(node)
        if is_new:
            self.book.new_nodes = True

    def _command(self, message: Command | Fact, now_ms: int, outcome: Outcome) -> None:
        book = self.book
        match message:
            case Hold(job_id):
                commands.hold(book, book.life(job_id), now_ms, outcome)
            case Release(job_id):
                commands.release(book, book.life(job_id), now_ms, outcome)
            case Reprioritise(job_id, priority):
                commands.reprioritise(book, book.life(job_id), priority, now_ms, outcome)
            case Cancel():
                commands.cancel(book, message, now_ms, outcome)
            case Retry(job_id):
                commands.retry(book, job_id, now_ms, outcome)
            case _:
                raise InternalError(f"the core does not know {type(message).__name__}")

    def _checkpointed(self, allocation_id: str, now_ms: int) -> None:
        if allocation_id in self.book.by_allocation:
            running = self.book.picture.running[allocation_id].running
            self.book.picture.revise(replace(running, checkpoint_ms=now_ms))
