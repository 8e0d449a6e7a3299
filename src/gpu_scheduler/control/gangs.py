"""Gangs over several nodes: prepared everywhere, committed in the store, then let run.

An attempt whose members are on several nodes is `held back` until its rendezvous is stored. Before
that no command of it runs anywhere, so it can be given up without asking who is out of reach; from
then on its members may run, and each of them must be heard of. A server that is started again, or
another one that takes over, reads which of the two is the case, and goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import CommitOrder, Outcome
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.jobs.stop import NOT_BEGUN, stop
from gpu_scheduler.control.messages import Prepared
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.plan import Allocation, Rendezvous
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.store.rows import EventRow

PREPARED = "prepared"
"""The timer of an attempt that is held back."""
BEGUN = "begun"
"""The timer of an attempt that may run and has not begun."""


def set_start_timers(state: ControlState, allocation: Allocation, listening_ms: int) -> None:
    """By when an attempt must be prepared or have begun, counted from what is stored.

    Who has listened only since `listening_ms` may not have heard yet that it has begun.
    """
    limits = state.limits
    if allocation.is_held_back and limits.prepare_timeout_ms:
        due_ms = allocation.start_ms + limits.prepare_timeout_ms
        state.set_timer(due_ms, PREPARED, allocation.id)
    elif allocation.rendezvous is not None and limits.gang_start_timeout_ms:
        due_ms = max(allocation.rendezvous.at_ms, listening_ms) + limits.gang_start_timeout_ms
        state.set_timer(due_ms, BEGUN, allocation.id)
    elif not allocation.spans_nodes and limits.start_timeout_ms:
        due_ms = max(allocation.start_ms, listening_ms) + limits.start_timeout_ms
        state.set_timer(due_ms, BEGUN, allocation.id)


def commit(state: ControlState, fact: Prepared, now_ms: int, outcome: Outcome) -> None:
    """Decide once that the gang runs, unless it is being stopped. The order follows the write."""
    found = state.running(fact.allocation_id)
    if found is None:
        return
    record, number, task = found
    running = state.cluster.running[fact.allocation_id].running
    if task.stop_why or not running.allocation.is_held_back:
        return
    rendezvous = Rendezvous(at_ms=now_ms, port=fact.port, hosts=fact.hosts)
    allocation = replace(running.allocation, rendezvous=rendezvous)
    state.cluster.revise(replace(running, allocation=allocation))
    set_start_timers(state, allocation, now_ms)
    outcome.writes += [
        allocation,
        EventRow(
            at_ms=now_ms,
            kind="prepared",
            job_id=record.job.id,
            task=number,
            user=record.job.user,
            data=(
                ("members", len(allocation.placements)),
                ("nodes", ", ".join(dict.fromkeys(p.node_id for p in allocation.by_rank))),
            ),
        ),
    ]
    outcome.effects.append(CommitOrder(allocation))


def give_up(state: ControlState, allocation_id: str, timer: str, outcome: Outcome) -> None:
    """A gang over nodes is late: it is stopped as a whole, also where a node is out of reach."""
    found = state.running(allocation_id)
    if found is None or found[2].state is not JobState.SCHEDULED:
        return
    allocation = state.cluster.running[allocation_id].running.allocation
    if (timer == PREPARED) == allocation.is_held_back:
        stop(state, allocation_id, NOT_BEGUN, outcome)


def preparing(state: ControlState, record: JobRecord) -> Reason | None:
    """Why a gang that has its places does not run yet; None if it is not held back."""
    task = record.only_task
    entry = None if task is None else state.cluster.running.get(task.allocation_id)
    if entry is None or not entry.running.allocation.is_held_back:
        return None
    allocation = entry.running.allocation
    data: tuple[tuple[str, str | int], ...] = (
        ("members", len(allocation.placements)),
        ("nodes", ", ".join(dict.fromkeys(p.node_id for p in allocation.by_rank))),
        ("until_ms", allocation.start_ms + state.limits.prepare_timeout_ms),
    )
    return Reason(ReasonCode.PREPARING, data)


def is_elastic(job: Job) -> bool:
    """Tell whether the job can go on with fewer members than it has."""
    return job.min_members < len(job.members)


def can_shrink(job: Job, task: TaskRecord) -> bool:
    """Tell whether the job can go on with one member fewer than it started with last.

    Tasks of an array wait as one, so they cannot differ in this.
    """
    return job.array is None and job.min_members < task.members


def effective_job(state: ControlState, job: Job, task: TaskRecord) -> Job:
    """What the engine is asked for: those beyond the minimum come last, and are left out first."""
    most = task.most_members
    if not most or most >= len(job.members):
        return job
    return replace(job, members=state.shared_members(job.members[:most]))


def resized(job: Job, task: TaskRecord, members: int, now_ms: int) -> list[EventRow]:
    """What to write when an elastic gang starts with another number of members than before."""
    before, task.members = task.members, members
    if not before or before == members:
        return []
    data = (("from", before), ("to", members), ("minimum", job.min_members))
    return [EventRow(at_ms=now_ms, kind="resized", job_id=job.id, user=job.user, data=data)]
