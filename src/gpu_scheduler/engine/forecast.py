"""Expected start times: roll the cluster state forward with expected run times.

The roll-out uses the engine's own cycle: decisions are made with what the scheduler believes
(limits, expectations), while jobs run as long as `run_ms_of` says. What will be submitted later is
not known; with `arrivals`, jobs come as they came in the last day, so that overtaking is part of
the forecast. A start that depends on the end of a job of unknown run time is marked as such. What
is expected to run for ever never ends, nor does what is on a lost node: it keeps what it holds.

Where a roll-out takes too long, `rough_start_ms` estimates a start from the work ahead of a job.
`guesses_ahead` and `guesses_before` name the jobs whose unknown run time makes such an estimate, or
the time of a reservation, uncertain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpu_scheduler.engine.arrivals import (
    FIRST_NUMBER,
    NO_ARRIVALS,
    ExpectedArrivals,
    RecentArrivals,
)
from gpu_scheduler.engine.decide import Cycle
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.quota.admission import user_quota_of
from gpu_scheduler.engine.reservation.backfill_calendar import StartedJob
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Placement, Reservation
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.service import BEYOND_MS

RunTime = Callable[[Job, int], int]
"""How long a job runs in all, given how long it has run already."""
Guess = Callable[[Job, int], bool]
"""Tells whether that is a mere guess."""
MAX_PASSES = 10_000
MOST_GUESSES = 50
"""Of more jobs than that it is not worked out whose run times a start hangs on."""
SAMPLED = 32
"""So many jobs of each line are sampled for a rough start."""
_NO_JOBS: frozenset[int] = frozenset()
_ANYWHERE = -1


@dataclass(frozen=True, slots=True)
class ForecastRun:
    """A job, or a task of an array, from its expected start to its expected end, with its place.

    Without an `end_ms` it is expected to run for ever.
    """

    number: int
    task: int | None
    start_ms: int
    end_ms: int | None
    placements: tuple[Placement, ...]


@dataclass(slots=True)
class Foresight:
    """What a roll-out has found so far; an interrupted roll-out leaves at least that.

    `starts` are expected starts by job number (of an array: of its next task). `guesses` names the
    jobs of unknown run time on whose ends such a start hangs, `after` the job whose end lets it
    start. `is_whole` says that the roll-out came to its end: a job without a start then gets none
    from any expected end. Where `runs` is a list, the roll-out adds every expected run to it, and
    goes on until all tasks of arrays have started. `reached_ms` is how far it came. After an error
    `failed_at` is the number of the job that was considered (0: none).
    """

    starts: dict[int, int] = field(default_factory=dict)
    guesses: dict[int, frozenset[int]] = field(default_factory=dict)
    after: dict[int, Job] = field(default_factory=dict)
    is_whole: bool = False
    runs: list[ForecastRun] | None = None
    reached_ms: int = 0
    failed_at: int | None = None


def forecast(
    state: ClusterState,
    now_ms: int,
    *,
    run_ms_of: RunTime | None = None,
    until: int | None = None,
) -> dict[int, int]:
    """Expected starts by job number (of an array: of its next task).

    With `until`, stop when that job has its answer. A job without an answer starts later than the
    forecast looks, or needs something that no expected end brings.
    """
    found = Foresight()
    foresee(state, now_ms, found, run_ms_of=run_ms_of, until=until)
    return found.starts


def foresee(
    state: ClusterState,
    now_ms: int,
    found: Foresight,
    *,
    run_ms_of: RunTime | None = None,
    is_guess: Guess | None = None,
    until: int | None = None,
    is_late: Callable[[], bool] | None = None,
    arrivals: RecentArrivals = NO_ARRIVALS,
) -> None:
    """Roll out, and note in `found` what is seen, as it is seen.

    `run_ms_of` may raise to stop; `is_late` is asked before every pass over the queue.
    """
    waiting_jobs = len(state.queue.entries)
    state.trials += 1
    expected = ExpectedArrivals(state, *arrivals.expected(now_ms))
    roll_out = None
    try:
        with state.trial() as transaction:
            roll_out = _RollOut(state, transaction, now_ms, run_ms_of, is_guess)
            roll_out.run(found, until, is_late, waiting_jobs, expected)
    except Exception:
        found.failed_at = 0 if roll_out is None else roll_out.considered
        raise
    finally:
        expected.remove()
        state.trials -= 1


def forecast_start(
    state: ClusterState,
    now_ms: int,
    number: int,
    run_ms_of: RunTime | None = None,
    arrivals: RecentArrivals = NO_ARRIVALS,
) -> int | None:
    """The expected start of one waiting job, if it can be foreseen."""
    found = Foresight()
    foresee(state, now_ms, found, run_ms_of=run_ms_of, until=number, arrivals=arrivals)
    return found.starts.get(number)


class _End(NamedTuple):
    """An expected end, of a running allocation or of a job that the roll-out has started.

    `guesses` are the jobs of unknown run time that make the end uncertain. The order makes ends at
    the same time differ.
    """

    end_ms: int
    order: int
    grants: list[Grant]
    guesses: frozenset[int]
    job: Job
    allocation_id: str = ""
    started: StartedJob | None = None


class _RollOut:
    """One roll-out: jobs end and start in a transaction, and nothing else changes."""

    def __init__(
        self,
        state: ClusterState,
        transaction: Transaction,
        now_ms: int,
        run_ms_of: RunTime | None,
        is_guess: Guess | None,
    ) -> None:
        self._state = state
        self._now_ms = now_ms
        self._run_ms_of = run_ms_of
        self._is_guess = is_guess
        self._cycle = Cycle(state, transaction, with_evictions=False)
        self._freed: dict[int, frozenset[int]] = {}
        self._last_ends: dict[int, _End] = {}
        self._ends = self._running_ends()
        self._order = len(state.ends)

    @property
    def considered(self) -> int:
        """The number of the job that is considered, 0 before the first."""
        return self._cycle.considered

    def run(
        self,
        found: Foresight,
        until: int | None,
        is_late: Callable[[], bool] | None,
        waiting_jobs: int,
        arrivals: ExpectedArrivals,
    ) -> None:
        """Decide, jump to the next end, decide again.

        An expected arrival joins at the next such moment: a pass for each would double the work.
        """
        cycle, ends = self._cycle, self._ends
        # Only a list of runs needs every task of an array.
        arrays = [] if found.runs is None else self._waiting_arrays()
        turns = sorted({each.end_ms for each in self._state.advance_reservations.values()})
        at_ms = self._now_ms
        just_ended = _NO_JOBS
        for _ in range(MAX_PASSES):
            if is_late is not None and is_late():
                return
            arrivals.enter_until(at_ms)
            before = len(cycle.decided.starts)
            cycle.run(at_ms)
            found.reached_ms = at_ms
            starts = cycle.decided.starts[before:]
            for start, started in zip(
                starts, cycle.started[len(cycle.started) - len(starts) :], strict=True
            ):
                number = started.job.number
                guesses = self._guesses_before(at_ms, started.grants, just_ended)
                if number < FIRST_NUMBER and number not in found.starts:
                    found.guesses[number] = guesses
                    after = self._last_end_on(started.grants)
                    if after is not None and after.number < FIRST_NUMBER:
                        found.after[number] = after
                    found.starts[number] = at_ms
                end_ms = self._add_end(started, at_ms, guesses)
                if found.runs is not None:
                    run = ForecastRun(number, start.task, at_ms, end_ms, start.placements)
                    found.runs.append(run)
            if until is not None and until in found.starts:
                return
            if len(found.starts) == waiting_jobs and not any(
                cycle.tasks_left[number] for number in arrays
            ):
                found.is_whole = True
                return
            turns = [end_ms for end_ms in turns if end_ms > at_ms]
            moments = [*turns[:1], *(end.end_ms for end in ends[:1])]
            if not moments:
                found.is_whole = cycle.complete
                return
            at_ms = min(moments)
            just_ended = self._end_all(at_ms)

    def _waiting_arrays(self) -> list[int]:
        """The numbers of the arrays of which tasks wait."""
        entries = self._state.queue.entries.items()
        return [number for number, entry in entries if entry.waiting.tasks is not None]

    def _running_ends(self) -> list[_End]:
        """The expected ends of what runs now; what is not expected to end is left out."""
        ends: list[_End] = []
        now_ms = self._now_ms
        for order, key in enumerate(self._state.ends):
            entry = self._state.running[key[3]]
            running = entry.running
            ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
            end_ms = running.expected_end_ms
            if running.stopping:
                end_ms = now_ms
            elif self._run_ms_of is not None:
                end_ms = now_ms + self._run_ms_of(running.job, ran_ms) - ran_ms
            if end_ms - now_ms < BEYOND_MS and not _is_out_of_reach(entry.grants):
                guesses = _NO_JOBS if running.stopping else self._guessed(running.job, ran_ms)
                end_ms = max(end_ms, now_ms + 1)
                ends.append(
                    _End(end_ms, order, entry.grants, guesses, running.job, allocation_id=key[3])
                )
        heapify(ends)
        return ends

    def _add_end(self, started: StartedJob, at_ms: int, guesses: frozenset[int]) -> int | None:
        """Add the expected end of a job that the roll-out starts, and return it."""
        waiting = self._state.queue.entries[started.job.number].waiting
        end_ms = started.end_ms
        if self._run_ms_of is not None:
            left_ms = self._run_ms_of(waiting.job, waiting.attained_ms) - waiting.attained_ms
            end_ms = at_ms + max(1, left_ms)
        if end_ms - at_ms >= BEYOND_MS:
            return None
        own = self._guessed(waiting.job, waiting.attained_ms)
        self._order += 1
        guesses = _both(guesses, own)
        end = _End(end_ms, self._order, started.grants, guesses, waiting.job, started=started)
        heappush(self._ends, end)
        return end_ms

    def _end_all(self, at_ms: int) -> frozenset[int]:
        """Let end what is due; returns the jobs of unknown run time that this depends on."""
        ended = _NO_JOBS
        while self._ends and self._ends[0].end_ms <= at_ms:
            end = heappop(self._ends)
            if end.started is None:
                self._cycle.end_running(end.allocation_id)
            else:
                self._cycle.end_started(end.started)
            self._last_ends[_ANYWHERE] = end
            for ordinal in _ordinals(end.grants):
                self._last_ends[ordinal] = end
            if end.guesses:
                ended = _both(ended, end.guesses)
                for ordinal in _ordinals(end.grants):
                    self._freed[ordinal] = _both(self._freed.get(ordinal, _NO_JOBS), end.guesses)
        return ended

    def _last_end_on(self, grants: list[Grant]) -> Job | None:
        """The job that ended last on these nodes; or anywhere, if the start waited for a quota."""
        ends = [
            self._last_ends[ordinal] for ordinal in _ordinals(grants) if ordinal in self._last_ends
        ]
        end = max(ends, default=self._last_ends.get(_ANYWHERE))
        return None if end is None else end.job

    def _guesses_before(
        self, at_ms: int, grants: list[Grant], just_ended: frozenset[int]
    ) -> frozenset[int]:
        """The jobs of unknown run time that a start depends on.

        Those that have just ended, and those that have ended on its nodes before.
        """
        if self._is_guess is None or at_ms == self._now_ms:
            return _NO_JOBS
        for ordinal in _ordinals(grants):
            just_ended = _both(just_ended, self._freed.get(ordinal, _NO_JOBS))
        return just_ended

    def _guessed(self, job: Job, ran_ms: int) -> frozenset[int]:
        """The job itself, if its end is a guess."""
        if self._is_guess is None or job.number >= FIRST_NUMBER or not self._is_guess(job, ran_ms):
            return _NO_JOBS
        return frozenset((job.number,))


def _is_out_of_reach(grants: Iterable[Grant]) -> bool:
    return any(grant.resources.node.state in {NodeState.LOST, NodeState.DEAD} for grant in grants)


def _ordinals(grants: Iterable[Grant]) -> list[int]:
    return sorted({grant.resources.ordinal for grant in grants})


def _both(one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
    if not other or len(one) >= MOST_GUESSES:
        return one
    return one | other if one else other


def rough_start_ms(state: ClusterState, number: int, now_ms: int) -> int | None:
    """About when a waiting job may start, from the work ahead of it; None if it does not wait.

    All that runs and all that is before the job in the queue is GPU time. The cluster does so much
    of it at once, and a tenant or user no more of its own than its quota of GPUs. Lines of like
    jobs are sampled, so the answer costs little however long the queue is. Placement, other limits
    and reservations are ignored: the answer is rough, and should be shown as such.
    """
    entry = state.queue.entries.get(number)
    if entry is None:
        return None
    waits_ms = [1]
    for tenant, user, at_once_milli in _shares_of(state, entry):
        work = _running_work(state, now_ms, tenant, user)
        work += _work_before(state, entry, tenant, user)
        waits_ms.append(work // max(WHOLE_MILLI, at_once_milli))
    return now_ms + max(waits_ms)


def _shares_of(state: ClusterState, entry: Entry) -> Iterator[tuple[str, str, int]]:
    """How much is done at once of all work, and of that of the tenant and user who are limited."""
    yield "", "", state.total_gpu_milli
    job = entry.waiting.job
    tenant = state.tenants.get(job.tenant)
    if tenant is not None and tenant.quota.gpu_milli is not None and not tenant.elastic:
        yield job.tenant, "", tenant.quota.gpu_milli
    of_user = user_quota_of(tenant, state.policy.user_quota).gpu_milli
    if of_user is not None:
        yield job.tenant, job.user, of_user


def _running_work(state: ClusterState, now_ms: int, tenant: str, user: str) -> int:
    return sum(
        entry.amounts.gpu_milli * max(0, entry.running.expected_end_ms - now_ms)
        for entry in state.running.values()
        if not entry.running.stopping
        and tenant in {"", entry.running.job.tenant}
        and user in {"", entry.running.job.user}
    )


def guesses_ahead(state: ClusterState, number: int, now_ms: int, is_guess: Guess) -> frozenset[int]:
    """Jobs of unknown run time among the running ones and, sampled, among those ahead."""
    found = set()
    for entry in state.running.values():
        running = entry.running
        ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
        if not running.stopping and is_guess(running.job, ran_ms):
            found.add(running.job.number)
    entries = state.queue.entries
    for sample, _ in _samples_before(state, entries[number]):
        for before in sample:
            waiting = entries[before].waiting
            if is_guess(waiting.job, waiting.attained_ms):
                found.add(before)
    return frozenset(found)


def _work_before(state: ClusterState, entry: Entry, tenant: str, user: str) -> int:
    """GPU time of all that goes before, line by line of every account and shape."""
    work = 0
    for sample, before in _samples_before(state, entry, tenant, user):
        seen = sum(_work_of(state, number) for number in sample)
        work += seen * before // len(sample)
    return work


def _samples_before(
    state: ClusterState, entry: Entry, tenant: str = "", user: str = ""
) -> Iterator[tuple[list[int], int]]:
    """Of every line (of a tenant, or user) some jobs that go before, and how many do."""
    fair_share = FairShare(state)
    value = entry.key + fair_share.penalty_ms(entry.group.key)
    for group in state.queue.groups.values():
        if tenant not in {"", group.key[0]} or user not in {"", group.key[1]}:
            continue
        bound = (value - fair_share.penalty_ms(group.key), entry.number)
        for line in group.by_shape.values():
            before = bisect_left(line, bound)
            if before:
                step = max(1, before // SAMPLED)
                yield [line[place][1] for place in range(0, before, step)], before


def _work_of(state: ClusterState, number: int) -> int:
    waiting = state.queue.entries[number].waiting
    left_ms = max(1, waiting.expected_ms - waiting.attained_ms)
    tasks = 1 if waiting.tasks is None else len(waiting.tasks)
    return waiting.job.gpu_milli * min(left_ms, state.limit_ms(waiting.job)) * tasks


def guesses_before(
    state: ClusterState, reservation: Reservation, now_ms: int, is_guess: Guess
) -> frozenset[int]:
    """Jobs whose unknown run time makes the time of a reservation uncertain; none if it is due.

    A reservation is due when what runs on its nodes, and what is booked there before it, has ended.
    """
    found: set[int] = set()
    left = [reservation]
    seen = {reservation.job_number}
    while left:
        one = left.pop()
        if one.at_ms <= now_ms + 1:
            continue
        found |= _running_before(state, one, now_ms, is_guess)
        nodes = _nodes(one)
        for other in state.reservations.values():
            if other.job_number in seen or other.until_ms > one.at_ms or not nodes & _nodes(other):
                continue
            seen.add(other.job_number)
            left.append(other)
            waiting = state.queue.entries[other.job_number].waiting
            if is_guess(waiting.job, waiting.attained_ms):
                found.add(other.job_number)
    return frozenset(found)


def _running_before(
    state: ClusterState, reservation: Reservation, now_ms: int, is_guess: Guess
) -> set[int]:
    found = set()
    for node_id in sorted(_nodes(reservation)):
        resources = state.index.by_id.get(node_id)
        entries = {} if resources is None else state.by_node.get(resources.ordinal, {})
        for entry in entries.values():
            running = entry.running
            if running.stopping or running.expected_end_ms > reservation.at_ms:
                continue
            ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
            if is_guess(running.job, ran_ms):
                found.add(running.job.number)
    return found


def _nodes(reservation: Reservation) -> set[str]:
    return {placement.node_id for placement in reservation.placements}
