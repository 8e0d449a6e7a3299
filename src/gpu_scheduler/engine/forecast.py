"""Until when: roll the picture forward with expected run times, purely, and see who starts when.

The roll-out uses the engine's own cycle: decisions are made with what the scheduler believes
(limits, expectations), while jobs run as long as `run_ms_of` says. What will be submitted later is
not known and not guessed. A start that hangs on the end of a job of which nobody knows how long it
runs is marked as such. What is expected to run for ever never ends, nor does what is on a node of
which nothing is heard: it holds what it has until somebody knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpu_scheduler.engine.decide import Cycle
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.slot import Hold
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.service import BEYOND_MS

RunTime = Callable[[Job, int], int]
"""How long a job runs in all, given how long it has run already."""
Guess = Callable[[Job, int], bool]
"""Tells whether that is a mere guess."""
MAX_PASSES = 10_000
MOST_GUESSES = 50
"""Of more jobs than that it is not worked out whose run times a start hangs on."""
_NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True)
class Foresight:
    """What a roll-out has found so far; whoever interrupts it has at least that.

    `starts` are expected starts by job number (of an array: of its next task). `guesses` names the
    jobs of unknown run time on whose ends such a start hangs. `is_whole` says that the roll-out
    came to its end: whoever has no start then gets none by anything that is expected to end.
    """

    starts: dict[int, int] = field(default_factory=dict)
    guesses: dict[int, frozenset[int]] = field(default_factory=dict)
    is_whole: bool = False


def forecast(
    picture: Picture,
    now_ms: int,
    *,
    run_ms_of: RunTime | None = None,
    until: int | None = None,
    into: dict[int, int] | None = None,
) -> dict[int, int]:
    """Expected starts by job number (of an array: of its next task).

    They are put `into` a given dictionary as they are found: `run_ms_of` may interrupt by raising.
    With `until`, stop when that job has its answer. A job without an answer starts later than the
    forecast looks, or needs something that no expected end brings.
    """
    found = Foresight() if into is None else Foresight(starts=into)
    foresee(picture, now_ms, found, run_ms_of=run_ms_of, until=until)
    return found.starts


def foresee(
    picture: Picture,
    now_ms: int,
    found: Foresight,
    *,
    run_ms_of: RunTime | None = None,
    is_guess: Guess | None = None,
    until: int | None = None,
) -> None:
    """Roll out, and note in `found` what is seen, as it is seen."""
    draft = Draft(picture.index)
    try:
        _Roll(picture, draft, now_ms, run_ms_of, is_guess).run(found, until)
    finally:
        draft.undo()


def forecast_start(
    picture: Picture, now_ms: int, number: int, run_ms_of: RunTime | None = None
) -> int | None:
    """The expected start of one waiting job, if it can be foreseen."""
    return forecast(picture, now_ms, run_ms_of=run_ms_of, until=number).get(number)


class _End(NamedTuple):
    """When what should end (`allocation_id` of what runs now), and on whose guessed ends it hangs.

    The order makes ends of one moment differ.
    """

    end_ms: int
    order: int
    allocation_id: str
    holds: list[Hold]
    guesses: frozenset[int]


class _Roll:
    """One way into the future: jobs end and start in a draft, and nothing else changes."""

    def __init__(
        self,
        picture: Picture,
        draft: Draft,
        now_ms: int,
        run_ms_of: RunTime | None,
        is_guess: Guess | None,
    ) -> None:
        self._picture = picture
        self._now_ms = now_ms
        self._run_ms_of = run_ms_of
        self._is_guess = is_guess
        self._cycle = Cycle(picture, draft, looking_ahead=True)
        self._freed: dict[int, frozenset[int]] = {}
        self._ends = self._of_what_runs()
        self._order = len(picture.ends)

    def run(self, found: Foresight, until: int | None) -> None:
        """Decide, jump to the next end, decide again."""
        cycle, ends = self._cycle, self._ends
        waiting_jobs = len(self._picture.queue.entries)
        turns = sorted({window.end_ms for window in self._picture.windows.values()})
        at_ms = self._now_ms
        just_ended = _NOBODY
        for _ in range(MAX_PASSES):
            before = len(cycle.found.starts)
            cycle.run(at_ms)
            new = len(cycle.found.starts) - before
            for end_ms, holds in cycle.started[len(cycle.started) - new :]:
                number = cycle.job_of[id(holds)][0].number
                guesses = self._hangs_on(at_ms, holds, just_ended)
                if number not in found.starts:
                    found.guesses[number] = guesses
                    found.starts[number] = at_ms
                self._will_end(number, at_ms, end_ms, holds, guesses)
            if len(found.starts) == waiting_jobs or (until is not None and until in found.starts):
                return
            turns = [end_ms for end_ms in turns if end_ms > at_ms]
            moments = [*turns[:1], *(end.end_ms for end in ends[:1])]
            if not moments:
                found.is_whole = cycle.complete
                return
            at_ms = min(moments)
            just_ended = self._end_all(at_ms)

    def _of_what_runs(self) -> list[_End]:
        """What runs now, by when it should end; what does not is left out."""
        ends: list[_End] = []
        now_ms = self._now_ms
        for order, key in enumerate(self._picture.ends):
            entry = self._picture.running[key[3]]
            running = entry.running
            ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
            end_ms = running.expected_end_ms
            if running.stopping:
                end_ms = now_ms
            elif self._run_ms_of is not None:
                end_ms = now_ms + self._run_ms_of(running.job, ran_ms) - ran_ms
            if end_ms - now_ms < BEYOND_MS and not _is_out_of_reach(entry.holds):
                guesses = _NOBODY if running.stopping else self._guessed(running.job, ran_ms)
                ends.append(_End(max(end_ms, now_ms + 1), order, key[3], entry.holds, guesses))
        heapify(ends)
        return ends

    def _will_end(
        self, number: int, at_ms: int, end_ms: int, holds: list[Hold], guesses: frozenset[int]
    ) -> None:
        """Note when a job should end that starts in the roll-out."""
        waiting = self._picture.queue.entries[number].waiting
        if self._run_ms_of is not None:
            left_ms = self._run_ms_of(waiting.job, waiting.attained_ms) - waiting.attained_ms
            end_ms = at_ms + max(1, left_ms)
        if end_ms - at_ms < BEYOND_MS:
            own = self._guessed(waiting.job, waiting.attained_ms)
            self._order += 1
            heappush(self._ends, _End(end_ms, self._order, "", holds, _both(guesses, own)))

    def _end_all(self, at_ms: int) -> frozenset[int]:
        """Let end what is due; on whose guessed run times that hangs."""
        ended = _NOBODY
        while self._ends and self._ends[0].end_ms <= at_ms:
            end = heappop(self._ends)
            self._cycle.end(end.allocation_id, end.holds)
            if end.guesses:
                ended = _both(ended, end.guesses)
                for ordinal in _ordinals(end.holds):
                    self._freed[ordinal] = _both(self._freed.get(ordinal, _NOBODY), end.guesses)
        return ended

    def _hangs_on(
        self, at_ms: int, holds: list[Hold], just_ended: frozenset[int]
    ) -> frozenset[int]:
        """The guessed ends behind a start: those at this moment, and those on its nodes before."""
        if self._is_guess is None or at_ms == self._now_ms:
            return _NOBODY
        for ordinal in _ordinals(holds):
            just_ended = _both(just_ended, self._freed.get(ordinal, _NOBODY))
        return just_ended

    def _guessed(self, job: Job, ran_ms: int) -> frozenset[int]:
        """The job itself, if its end is a guess."""
        if self._is_guess is None or not self._is_guess(job, ran_ms):
            return _NOBODY
        return frozenset((job.number,))


def _is_out_of_reach(holds: Iterable[Hold]) -> bool:
    return any(hold.slot.node.state in {NodeState.LOST, NodeState.DEAD} for hold in holds)


def _ordinals(holds: Iterable[Hold]) -> list[int]:
    return sorted({hold.slot.ordinal for hold in holds})


def _both(one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
    if not other or len(one) >= MOST_GUESSES:
        return one
    return one | other if one else other
