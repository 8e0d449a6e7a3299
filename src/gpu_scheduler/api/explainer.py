"""Why a job waits, where it stands in the queue, and when it should start.

Reasons are those of the last plan. A forecast is worked out when somebody asks, on the loop that
also schedules, so it may take only so long, is kept until something changes, and even then is not
made again before ten times what the last one took has passed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.control.gangs import preparing
from gpu_scheduler.control.nodes.lost_nodes import on_lost_node
from gpu_scheduler.control.scheduling.forecast_audit import expected_end_ms
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.forecast import Foresight, foresee, guesses_before
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Plan, Reservation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.snapshot import Running, Waiting
from gpu_scheduler.predict.interface import is_guess

MOST_FORECAST_S = 0.1
"""A forecast that takes longer is given up; then only a reservation says when a job starts."""
LEAST_PAUSE_S = 0.05
PAUSE_FACTOR = 10
SCREEN_FACTOR = 50
"""A screen that asks again and again may take this much less than what it gives back."""


_NOBODY: frozenset[int] = frozenset()


class StartForecast(NamedTuple):
    """When a queued job should start, and how far that can be relied upon.

    `guesses` are the jobs of unknown run time on whose ends it hangs. `is_never` says that nothing
    which is expected to end lets it start: somebody has to do something.
    """

    start_ms: int | None
    is_reserved: bool = False
    guesses: frozenset[int] = _NOBODY
    is_never: bool = False


NOTHING = StartForecast(None)


@dataclass(frozen=True, slots=True)
class _Forecast:
    """What was foreseen, the state that was made from, and until when it is good enough."""

    version: int
    fresh_until: float
    found: Foresight


class Explainer:
    """Answers for one service."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is worked out yet."""
        self._service = service
        self._clock = clock
        self._forecast = _Forecast(-1, 0.0, Foresight())
        self._screen_after = 0.0
        self._trial_after = 0.0

    def reason(self, job_id: str) -> Reason | None:
        """Why a living job does not run; None if it does, or has ended."""
        state = self._service.core.state
        record = state.jobs.get(job_id)
        if record is None:
            return None
        if not record.queued:
            return record.why() or on_lost_node(state, record) or preparing(state, record)
        return explain(state.cluster, self._service.last_plan or Plan(), record.job.number)

    def lost_node(self, job_id: str, task: int | None = None) -> Reason | None:
        """That a job, or one of its tasks, is on a node of which nothing is heard."""
        state = self._service.core.state
        record = state.jobs.get(job_id)
        return None if record is None else on_lost_node(state, record, task)

    def position(self, number: int) -> int | None:
        """How many jobs stand before it, plus one: 1 is the head of the queue."""
        cluster = self._service.core.state.cluster
        entry = cluster.queue.entries.get(number)
        return None if entry is None else _place(cluster, entry)

    def outlook(self, number: int) -> StartForecast:
        """When a queued job should start by its reservation, else by a forecast."""
        cluster = self._service.core.state.cluster
        if number not in cluster.queue.entries:
            return NOTHING
        reserved = self._reserved(number)
        if reserved is not None:
            return self._of_reservation(reserved)
        kept = self._current(number)
        outlook = _outlook_in(kept.found, number)
        # What was found earlier says nothing of whoever came since.
        is_new = kept.version != self._service.tallies.messages
        return NOTHING if is_new and outlook.is_never else outlook

    def expected_start_ms(self, number: int) -> int | None:
        """When it should start, if that can be foreseen in time and something vouches for it."""
        outlook = self.outlook(number)
        return None if outlook.guesses else outlook.start_ms

    def expected_starts(self, numbers: list[int]) -> dict[int, int]:
        """The same for a screen of jobs in their order. What is shown may be a little older."""
        cluster = self._service.core.state.cluster
        queued = [number for number in numbers if number in cluster.queue.entries]
        unknown = [number for number in queued if self._reserved(number) is None]
        began = self._clock()
        found = self._forecast.found
        if unknown and began >= self._screen_after:
            # The last of them needs the longest look, and what it finds covers the others.
            found = self._current(unknown[-1]).found
            ended = self._clock()
            self._screen_after = ended + SCREEN_FACTOR * (ended - began)
        now_ms = self._service.now_ms()
        starts: dict[int, int] = {}
        for number in queued:
            reserved = self._reserved(number)
            if reserved is not None:
                outlook = self._of_reservation(reserved)
                if outlook.start_ms is not None and not outlook.guesses:
                    starts[number] = outlook.start_ms
            elif number in found.starts and not found.guesses.get(number):
                starts[number] = max(found.starts[number], now_ms)
        return starts

    def foreseen_until_ms(self) -> int:
        """Up to when the last forecast came: whom it did not see start, starts later."""
        return max(self._forecast.found.starts.values(), default=0)

    def outlook_if_queued(self, waiting: Waiting) -> tuple[StartForecast, int | None]:
        """When a job should start that is not there yet, if it came now; and its place in line.

        The queue is left as it was. Whoever asks often is told less.
        """
        cluster = self._service.core.state.cluster
        number = waiting.job.number
        entry = cluster.enqueue(waiting)
        try:
            place = _place(cluster, entry)
            if self._clock() < self._trial_after:
                return NOTHING, place
            found, began, ended = self._look(number)
            self._trial_after = ended + PAUSE_FACTOR * (ended - began)
        finally:
            cluster.dequeue(number)
        return _outlook_in(found, number), place

    def is_guess(self, job: Job, ran_ms: int = 0) -> bool:
        """Tell whether nobody knows how long a job runs that has run for so long."""
        return not job.service and is_guess(self._service.core.state.predictor, job, ran_ms)

    def _reserved(self, number: int) -> Reservation | None:
        """The place and time that a job keeps; one whose time has passed says nothing any more."""
        reserved = self._service.core.state.cluster.reservations.get(number)
        is_over = reserved is None or reserved.at_ms < self._service.now_ms()
        return None if is_over else reserved

    def _of_reservation(self, reserved: Reservation) -> StartForecast:
        now_ms = self._service.now_ms()
        cluster = self._service.core.state.cluster
        guesses = guesses_before(cluster, reserved, now_ms, self.is_guess)
        return StartForecast(max(reserved.at_ms, now_ms), is_reserved=True, guesses=guesses)

    def _current(self, number: int) -> _Forecast:
        kept = self._forecast
        now = self._clock()
        version = self._service.tallies.messages
        is_current = kept.version == version and (
            number in kept.found.starts or kept.found.is_whole
        )
        if not is_current and now >= kept.fresh_until:
            found, began, ended = self._look(number)
            pause = max(LEAST_PAUSE_S, PAUSE_FACTOR * (ended - began))
            kept = self._forecast = _Forecast(version, ended + pause, found)
        return kept

    def _look(self, number: int) -> tuple[Foresight, float, float]:
        """Roll out until a job starts, for a tenth of a second at most; and when that was."""
        cluster = self._service.core.state.cluster
        began = self._clock()
        give_up = began + MOST_FORECAST_S
        state, now_ms = self._service.core.state, self._service.now_ms()
        run_times = _RunTimes(state, now_ms, lambda: self._clock() > give_up)
        found = Foresight()
        with suppress(_OutOfTime):
            # What was found in time is as good as ever; the rest starts later than that.
            foresee(
                cluster,
                run_times.now_ms,
                found,
                run_ms_of=run_times,
                is_guess=self.is_guess,
                until=number,
            )
        return found, began, self._clock()


def _outlook_in(found: Foresight, number: int) -> StartForecast:
    start_ms = found.starts.get(number)
    if start_ms is None:
        return StartForecast(None, is_never=found.is_whole)
    return StartForecast(start_ms, guesses=found.guesses.get(number, _NOBODY))


def ran_so_far_ms(running: Running, now_ms: int) -> int:
    """How long it has run, with what it keeps of former attempts."""
    return running.attained_ms + max(0, now_ms - running.allocation.start_ms)


class _OutOfTime(Exception):
    """The forecast takes too long."""


class _RunTimes:
    """Run times as the scheduler expects them, asked for at every start that is foreseen.

    That makes it the place to give up from: nothing is half done there.
    """

    def __init__(self, state: ControlState, now_ms: int, is_late: Callable[[], bool]) -> None:
        """Of what runs, the expected ends are looked up once."""
        self.now_ms = now_ms
        self._predictor = state.predictor
        self._entries = state.cluster.queue.entries
        self._is_late = is_late
        self._running: dict[tuple[int, int], Running] = {}
        for entry in state.cluster.running.values():
            running = entry.running
            key = (running.job.number, ran_so_far_ms(running, now_ms))
            known = self._running.get(key)
            if known is None or known.expected_end_ms < running.expected_end_ms:
                self._running[key] = running

    def __call__(self, job: Job, ran_ms: int) -> int:
        """How long a job runs in all, given how long it has run already."""
        if self._is_late():
            raise _OutOfTime
        known = self._running.get((job.number, ran_ms))
        if known is not None:
            end_ms = expected_end_ms(self._predictor, known, self.now_ms)
            return ran_ms + max(0, end_ms - self.now_ms)
        entry = self._entries.get(job.number)
        return ran_ms if entry is None else entry.waiting.expected_ms


def _place(cluster: ClusterState, entry: Entry) -> int:
    """Count what goes before, by binary search in the line of every account and shape."""
    standings = FairShare(cluster)
    value = entry.key + standings.penalty_ms(entry.group.key)
    before = 0
    for group in cluster.queue.groups.values():
        bound = (value - standings.penalty_ms(group.key), entry.number)
        before += sum(bisect_left(line, bound) for line in group.by_shape.values())
    return before + 1


def sentence(reason: Reason | None) -> tuple[str, str]:
    """The code and the sentence for people."""
    if reason is None:
        return "", ""
    if reason.code is ReasonCode.NOT_EXAMINED:
        return reason.code.value, "waiting for its turn"
    return reason.code.value, str(reason)
