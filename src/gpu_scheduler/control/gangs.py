"""Gangs over several nodes: prepared everywhere, committed in the store, then let run.

An attempt whose members are on several nodes is `held back` until its rendezvous is stored. Before
that no command of it runs anywhere, so it can be given up without asking who is out of reach; from
then on its members may run, and each of them must be heard of. A server that is started again, or
another one that takes over, reads which of the two is the case, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu_scheduler.control.effects import CommitOrder, Outcome
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.jobs.lifecycle import NOT_BEGUN, stop
from gpu_scheduler.control.messages import Ended, Prepared
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import EPILOG, PROLOG, HookFailure
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


def on_prepared(state: ControlState, fact: Prepared, now_ms: int, outcome: Outcome) -> None:
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


def resized(job: Job, task: TaskRecord, members: int, now_ms: int) -> list[EventRow]:
    """What to write when an elastic gang starts with another number of members than before."""
    before, task.members = task.members, members
    if not before or before == members:
        return []
    data = (("from", before), ("to", members), ("minimum", job.min_members))
    return [EventRow(at_ms=now_ms, kind="resized", job_id=job.id, user=job.user, data=data)]


GANG = "gang"
"""Why a member is stopped when another one has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """How one member ended; `is_told` by its node, and not only known.

    `at_ms` is when, by the clock of its node, and `ended_ms` by our own, as far as is known.
    """

    exit_code: int | None
    signal: int | None
    ran: bool = True
    stopped_by: str = ""
    detail: str = ""
    at_ms: int = 0
    ended_ms: int | None = None
    run_ms: int = 0
    prolog_failed: str = ""
    epilog_failed: str = ""
    is_told: bool = False

    @property
    def went_well(self) -> bool:
        """Tell whether the member did what it should."""
        return self.ran and self.exit_code == 0 and self.signal is None


@dataclass(slots=True)
class _Attempt:
    nodes: dict[int, str]
    prepared: dict[int, int] = field(default_factory=dict)
    began: set[int] = field(default_factory=set)
    ends: dict[int, MemberResult] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    told_to_stop: bool = False
    late: str = ""

    @property
    def has_failed(self) -> bool:
        return not all(end.went_well for end in self.ends.values())


class GangStatus:
    """All attempts that are under way."""

    def __init__(self) -> None:
        """Start with none."""
        self._attempts: dict[str, _Attempt] = {}

    def prepared(self, allocation: Allocation, member: int, port: int) -> int | None:
        """A member is prepared; the port of the first one, if all of them are by now."""
        attempt = self._of(allocation)
        if member in attempt.nodes:
            attempt.prepared[member] = port
        if attempt.prepared.keys() != attempt.nodes.keys() or attempt.ends:
            return None
        return attempt.prepared[min(attempt.nodes)]

    def away(self, node_id: str) -> None:
        """A node is out of reach: what it has prepared counts again when it says so again."""
        for attempt in self._attempts.values():
            for number in [n for n in attempt.prepared if attempt.nodes[n] == node_id]:
                del attempt.prepared[number]

    def began(self, allocation: Allocation, member: int) -> bool:
        """A member runs; True if that was the last one to begin."""
        attempt = self._of(allocation)
        if member in attempt.began or member not in attempt.nodes:
            return False
        attempt.began.add(member)
        return attempt.began == attempt.nodes.keys()

    def over(self, allocation: Allocation, member: int, end: MemberResult) -> Ended | None:
        """A member is over; the end of the whole attempt, if it was the last one."""
        attempt = self._of(allocation)
        if member in attempt.nodes:
            attempt.ends.setdefault(member, end)
            if end.is_told:
                attempt.told.add(member)
        if attempt.ends.keys() != attempt.nodes.keys():
            return None
        failed = [number for number, one in attempt.ends.items() if not one.went_well]
        decisive = min(
            failed,
            key=lambda number: (
                # Where a prolog failed nothing of the attempt has run, whatever else was wrong.
                not attempt.ends[number].prolog_failed,
                attempt.ends[number].stopped_by == GANG,
                attempt.ends[number].at_ms,
            ),
            default=member,
        )
        found = attempt.ends[decisive]
        grounds = [found] if failed else [attempt.ends[number] for number in sorted(attempt.ends)]
        stopped_by = next(
            (one.stopped_by for one in grounds if one.stopped_by not in {"", GANG}), ""
        )
        return Ended(
            allocation.id,
            exit_code=found.exit_code,
            signal=found.signal,
            ran=found.ran,
            stopped_by=stopped_by,
            detail=attempt.late or _told(attempt, decisive),
            hooks=_hooks(attempt),
            at_ms=_ended_ms(attempt),
            run_ms=max(one.run_ms for one in attempt.ends.values()),
        )

    def to_stop(self, allocation: Allocation) -> list[int]:
        """The members that must stop because another one failed; told once."""
        attempt = self._of(allocation)
        if attempt.told_to_stop or not attempt.has_failed:
            return []
        attempt.told_to_stop = True
        return sorted(attempt.nodes.keys() - attempt.ends.keys())

    def to_stop_on(self, node_id: str) -> list[tuple[str, int]]:
        """The same for a node that comes back, which may not have heard of it: all, each time."""
        return [
            (allocation_id, number)
            for allocation_id, attempt in self._attempts.items()
            if attempt.has_failed
            for number, node in attempt.nodes.items()
            if node == node_id and number not in attempt.ends
        ]

    def not_over(self, allocation: Allocation) -> list[int]:
        """The members of whose end nothing was heard."""
        attempt = self._of(allocation)
        return sorted(attempt.nodes.keys() - attempt.ends.keys())

    def note_late(self, allocation: Allocation, out_of_reach: Iterable[str], after_ms: int) -> str:
        """A gang over nodes has not begun in time: says whose fault that is, and remembers it."""
        attempt = self._of(allocation)
        committed = allocation.rendezvous is not None
        there = attempt.began if committed else attempt.prepared.keys()
        silent = set(out_of_reach)
        what = "did not begin" if committed else "was not prepared"
        missing = [
            f"member {number} on {node} {what} within {after_ms / 1000:g} s"
            + (", and its node does not answer" if node in silent else "")
            for number, node in sorted(attempt.nodes.items())
            if number not in there and number not in attempt.ends
        ]
        attempt.late = "; ".join(missing)
        return attempt.late

    def progress(self, allocation_id: str) -> tuple[list[int], list[int]]:
        """The members that are prepared, and those that have begun, as far as was heard."""
        attempt = self._attempts.get(allocation_id)
        return ([], []) if attempt is None else (sorted(attempt.prepared), sorted(attempt.began))

    def clear(self) -> None:
        """Whatever was heard may be wrong: it is told again."""
        self._attempts.clear()

    def places(self, allocation_id: str) -> list[tuple[int, str, bool]]:
        """The members of an attempt that was heard of, their nodes, and who has told its end."""
        attempt = self._attempts.get(allocation_id)
        if attempt is None:
            return []
        return [(number, node, number in attempt.told) for number, node in attempt.nodes.items()]

    def forget(self, allocation_id: str) -> None:
        """The attempt has ended for the core too."""
        self._attempts.pop(allocation_id, None)

    def _of(self, allocation: Allocation) -> _Attempt:
        attempt = self._attempts.get(allocation.id)
        if attempt is None:
            nodes = {placement.member: placement.node_id for placement in allocation.placements}
            attempt = self._attempts[allocation.id] = _Attempt(nodes)
        return attempt


def _ended_ms(attempt: _Attempt) -> int | None:
    """When the last member ended; None if that is not known of each of them."""
    known = [end.ended_ms for end in attempt.ends.values() if end.ended_ms is not None]
    return max(known) if len(known) == len(attempt.ends) else None


def _told(attempt: _Attempt, number: int) -> str:
    """How the attempt ended; of a gang, with whose end that was."""
    end = attempt.ends[number]
    if len(attempt.nodes) == 1 and end.prolog_failed:
        return f"node {attempt.nodes[number]}: {end.detail}"
    if len(attempt.nodes) == 1 or end.went_well:
        return end.detail
    what = end.detail
    if not what and end.exit_code is not None:
        what = f"exit code {end.exit_code}"
    elif not what and end.signal is not None:
        what = f"signal {end.signal}"
    return f"member {number} on {attempt.nodes[number]}: {what}" if what else ""


def _hooks(attempt: _Attempt) -> tuple[HookFailure, ...]:
    """Which hooks failed, the first of each kind on each node."""
    found: dict[tuple[str, str], HookFailure] = {}
    for number, end in sorted(attempt.ends.items()):
        for hook, how in ((PROLOG, end.prolog_failed), (EPILOG, end.epilog_failed)):
            node_id = attempt.nodes[number]
            if how:
                found.setdefault((node_id, hook), HookFailure(node_id, hook, how))
    return tuple(found.values())
