"""Prologs and epilogs that failed: that is the fault of their node, not of the job.

The node is set aside, so that it does not fail one job after the other. A job whose prolog failed
has not run: it waits again and keeps its retries, up to so many times in a row. An epilog that
fails changes nothing about how its job ended.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control import nodes
from gpu_scheduler.control.book import Book
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.life import JobLife, TaskLife
from gpu_scheduler.control.messages import Ended
from gpu_scheduler.model.hooks import PROLOG
from gpu_scheduler.model.job import called
from gpu_scheduler.model.service import Restart
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.rows import EventRow


def kept_from_running(task: TaskLife, fact: Ended) -> bool:
    """Tell whether an attempt ended because a prolog failed, and for no other reason."""
    has_begun = fact.ran or task.state is not JobState.SCHEDULED
    return not has_begun and not task.stop_why and any(one.hook == PROLOG for one in fact.hooks)


def state_after(book: Book, life: JobLife, task: TaskLife) -> JobState:
    """What becomes of a task whose prolog failed: it waits again, unless that never ends.

    A service that is to be kept alive is never given up.
    """
    task.prolog_failures += 1
    service = book.services.get(life.job.service)
    if service is not None and service.restart.policy is not Restart.NEVER:
        return JobState.PENDING
    may_help = task.prolog_failures < book.limits.max_prolog_failures
    return JobState.PENDING if may_help else JobState.FAILED


def with_count(task: TaskLife, fact: Ended, state: JobState) -> Ended:
    """Say at the end of all attempts that there were several."""
    is_last = state is JobState.FAILED and kept_from_running(task, fact)
    if not is_last or task.prolog_failures < 2:
        return fact
    times = f"a prolog failed {task.prolog_failures} times in a row, so it is not tried again"
    return replace(fact, detail=f"{fact.detail}; {times}")


def note(
    book: Book, life: JobLife, number: int | None, fact: Ended, now_ms: int, outcome: Outcome
) -> None:
    """Write down which hooks failed, and set their nodes aside."""
    job = life.job
    name = called(job.id) if number is None else f"{called(job.id)}, task {number}"
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
        if book.limits.hook_failure_drains:
            why = f"the {one.hook} of {name} failed: {one.detail}"
            nodes.set_aside(book, one.node_id, why, now_ms, outcome)


def goes_elsewhere(book: Book, task: TaskLife, fact: Ended) -> bool:
    """Tell whether the next attempt cannot meet the prolog that failed, and need not pause."""
    if not kept_from_running(task, fact):
        return False
    slots = [book.picture.index.by_id.get(one.node_id) for one in fact.hooks if one.hook == PROLOG]
    return all(slot is None or not slot.node.takes_work for slot in slots)
