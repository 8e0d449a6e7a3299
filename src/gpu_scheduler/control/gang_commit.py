"""Gangs over several nodes: prepare on every node, commit in the store, then run.

An attempt whose members are on several nodes is held back until its rendezvous is stored. Before
that none of its commands runs anywhere, so it can be given up without contact to its nodes. After
that its members may run, and the end of each must be reported. A restarted server, or a new leader,
reads from the store which of the two holds. `GangStatus` combines the reports of the members into
reports about the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpu_scheduler.control.effects import CommitOrder, Outcome
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.messages import Ended, Prepared
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import EPILOG, PROLOG, HookFailure
from gpu_scheduler.model.plan import Allocation, Rendezvous
from gpu_scheduler.model.reasons import Reason, ReasonCode

PREPARED = "prepared"
"""The kind of the timer by which a gang must be prepared."""
BEGUN = "begun"
"""The kind of the timer by which an attempt must have started."""


def set_start_timers(state: ControlState, allocation: Allocation, listening_ms: int) -> None:
    """Set the timer by which an attempt must be prepared or have started.

    After a restart the reports arrive only from `listening_ms` on, so the timeout starts then.
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
    """All members are prepared: commit the gang once, unless it is being stopped."""
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
    outcome.writes.append(allocation)
    nodes = ", ".join(dict.fromkeys(placement.node_id for placement in allocation.by_rank))
    data = (("members", len(allocation.placements)), ("nodes", nodes))
    outcome.job_event(record.job, "prepared", now_ms, task=number, data=data)
    outcome.effects.append(CommitOrder(allocation))


def preparing(state: ControlState, record: JobRecord) -> Reason | None:
    """Why a placed gang does not run yet; None if it is not held back."""
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
    """Tell whether the job can run with fewer members than it asks for."""
    return job.min_members < len(job.members)


def can_shrink(job: Job, task: TaskRecord) -> bool:
    """Tell whether the job can run with one member fewer than at its last start.

    Tasks of an array share one queue entry, so they cannot differ in size.
    """
    return job.array is None and job.min_members < task.members


def note_members(job: Job, task: TaskRecord, members: int, now_ms: int, outcome: Outcome) -> None:
    """An elastic gang starts; write an event if it has another number of members than before."""
    before, task.members = task.members, members
    if before and before != members:
        data = (("from", before), ("to", members), ("minimum", job.min_members))
        outcome.job_event(job, "resized", now_ms, data=data)


GANG = "gang"
"""Why a member is stopped when another member has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """How one member ended; `is_reported` if its node said so, and it was not inferred.

    `at_ms` is the time by the clock of its node, `ended_ms` by the server's clock if known.
    `image_digest` is that of the image that an engine of root ran.
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
    image_digest: str = ""
    is_reported: bool = False

    @property
    def succeeded(self) -> bool:
        """Tell whether the member ended with exit code 0."""
        return self.ran and self.exit_code == 0 and self.signal is None


@dataclass(slots=True)
class _Attempt:
    nodes: dict[int, str]
    prepared: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ends: dict[int, MemberResult] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    stop_ordered: bool = False
    late: str = ""

    @property
    def has_failed(self) -> bool:
        return not all(end.succeeded for end in self.ends.values())


class GangStatus:
    """The members of all attempts that have started or are starting."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._attempts: dict[str, _Attempt] = {}

    def on_prepared(self, allocation: Allocation, member: int, port: int) -> int | None:
        """A member is prepared; return the port of the first member once all are prepared."""
        attempt = self._of(allocation)
        if member in attempt.nodes:
            attempt.prepared[member] = port
        if attempt.prepared.keys() != attempt.nodes.keys() or attempt.ends:
            return None
        return attempt.prepared[min(attempt.nodes)]

    def on_disconnected(self, node_id: str) -> None:
        """A node is disconnected: its members must report again that they are prepared."""
        for attempt in self._attempts.values():
            for number in [n for n in attempt.prepared if attempt.nodes[n] == node_id]:
                del attempt.prepared[number]

    def on_started(self, allocation: Allocation, member: int) -> bool:
        """A member runs; return True once all members run."""
        attempt = self._of(allocation)
        if member in attempt.started or member not in attempt.nodes:
            return False
        attempt.started.add(member)
        return attempt.started == attempt.nodes.keys()

    def on_ended(self, allocation: Allocation, member: int, end: MemberResult) -> Ended | None:
        """A member has ended; return the end of the attempt once all members have ended.

        The attempt ends like the first member that failed by itself, in whatever order the reports
        arrive.
        """
        attempt = self._of(allocation)
        if member in attempt.nodes:
            attempt.ends.setdefault(member, end)
            if end.is_reported:
                attempt.reported.add(member)
        if attempt.ends.keys() != attempt.nodes.keys():
            return None
        failed = [number for number, one in attempt.ends.items() if not one.succeeded]
        decisive = min(
            failed,
            key=lambda number: (
                # A failed prolog decides first: then nothing of the attempt has run.
                not attempt.ends[number].prolog_failed,
                attempt.ends[number].stopped_by == GANG,
                attempt.ends[number].at_ms,
            ),
            default=member,
        )
        found = attempt.ends[decisive]
        deciding = [found] if failed else [attempt.ends[number] for number in sorted(attempt.ends)]
        stopped_by = next(
            (one.stopped_by for one in deciding if one.stopped_by not in {"", GANG}), ""
        )
        return Ended(
            allocation.id,
            exit_code=found.exit_code,
            signal=found.signal,
            ran=found.ran,
            stopped_by=stopped_by,
            detail=attempt.late or _detail(attempt, decisive),
            hooks=_hooks(attempt),
            at_ms=_ended_ms(attempt),
            run_ms=max(one.run_ms for one in attempt.ends.values()),
            image_digest=_image_digest(attempt),
        )

    def to_stop(self, allocation: Allocation) -> list[int]:
        """The members that must stop because another one failed; returned once."""
        attempt = self._of(allocation)
        if attempt.stop_ordered or not attempt.has_failed:
            return []
        attempt.stop_ordered = True
        return sorted(attempt.nodes.keys() - attempt.ends.keys())

    def to_stop_on(self, node_id: str) -> list[tuple[str, int]]:
        """All members on a reconnected node that must stop because another member failed."""
        return [
            (allocation_id, number)
            for allocation_id, attempt in self._attempts.items()
            if attempt.has_failed
            for number, node in attempt.nodes.items()
            if node == node_id and number not in attempt.ends
        ]

    def not_ended(self, allocation: Allocation) -> list[int]:
        """The members whose end has not been reported."""
        attempt = self._of(allocation)
        return sorted(attempt.nodes.keys() - attempt.ends.keys())

    def note_late(self, allocation: Allocation, out_of_reach: Iterable[str], after_ms: int) -> str:
        """A gang did not start in time: record and return which members were late."""
        attempt = self._of(allocation)
        committed = allocation.rendezvous is not None
        there = attempt.started if committed else attempt.prepared.keys()
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
        """The members that are prepared, and those that have started."""
        attempt = self._attempts.get(allocation_id)
        return ([], []) if attempt is None else (sorted(attempt.prepared), sorted(attempt.started))

    def clear(self) -> None:
        """Drop all reports, for example after a reload; agents report again."""
        self._attempts.clear()

    def places(self, allocation_id: str) -> list[tuple[int, str, bool]]:
        """Members of an attempt, their nodes, and whether the node has reported the end."""
        attempt = self._attempts.get(allocation_id)
        if attempt is None:
            return []
        return [
            (number, node, number in attempt.reported) for number, node in attempt.nodes.items()
        ]

    def forget(self, allocation_id: str) -> None:
        """Remove an attempt that has ended."""
        self._attempts.pop(allocation_id, None)

    def _of(self, allocation: Allocation) -> _Attempt:
        attempt = self._attempts.get(allocation.id)
        if attempt is None:
            nodes = {placement.member: placement.node_id for placement in allocation.placements}
            attempt = self._attempts[allocation.id] = _Attempt(nodes)
        return attempt


def _ended_ms(attempt: _Attempt) -> int | None:
    """When the last member ended; None unless known for every member."""
    known = [end.ended_ms for end in attempt.ends.values() if end.ended_ms is not None]
    return max(known) if len(known) == len(attempt.ends) else None


def _image_digest(attempt: _Attempt) -> str:
    """The image that the first member ran, by its number, of those whose image is known."""
    return next(
        (end.image_digest for _, end in sorted(attempt.ends.items()) if end.image_digest), ""
    )


def _detail(attempt: _Attempt, number: int) -> str:
    """How the attempt ended; for a gang, with the member that decided it."""
    end = attempt.ends[number]
    if len(attempt.nodes) == 1 and end.prolog_failed:
        return f"node {attempt.nodes[number]}: {end.detail}"
    if len(attempt.nodes) == 1 or end.succeeded:
        return end.detail
    what = end.detail
    if not what and end.exit_code is not None:
        what = f"exit code {end.exit_code}"
    elif not what and end.signal is not None:
        what = f"signal {end.signal}"
    return f"member {number} on {attempt.nodes[number]}: {what}" if what else ""


def _hooks(attempt: _Attempt) -> tuple[HookFailure, ...]:
    """The failed hooks, one per node and kind."""
    found: dict[tuple[str, str], HookFailure] = {}
    for number, end in sorted(attempt.ends.items()):
        for hook, how in ((PROLOG, end.prolog_failed), (EPILOG, end.epilog_failed)):
            node_id = attempt.nodes[number]
            if how:
                found.setdefault((node_id, hook), HookFailure(node_id, hook, how))
    return tuple(found.values())
