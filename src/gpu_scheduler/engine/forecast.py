"""Until when: roll the picture forward with expected run times, purely, and see who starts when.

The roll-out uses the engine's own cycle: decisions are made with what the scheduler believes
(limits, expectations), while jobs run as long as `run_ms_of` says. What will be submitted later is
not known and not guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from gpu_scheduler.engine.decide import Cycle
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.slot import Hold
from gpu_scheduler.model.job import Job

RunTime = Callable[[Job, int], int]
"""How long a job runs in all, given how long it has run already."""
MAX_PASSES = 10_000


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
    draft = Draft(picture.index)
    try:
        starts = {} if into is None else into
        _roll(picture, draft, now_ms, run_ms_of, until, starts)
        return starts
    finally:
        draft.undo()


def forecast_start(
    picture: Picture, now_ms: int, number: int, run_ms_of: RunTime | None = None
) -> int | None:
    """The expected start of one waiting job, if it can be foreseen."""
    return forecast(picture, now_ms, run_ms_of=run_ms_of, until=number).get(number)


def _roll(
    picture: Picture,
    draft: Draft,
    now_ms: int,
    run_ms_of: RunTime | None,
    until: int | None,
    starts: dict[int, int],
) -> None:
    cycle = Cycle(picture, draft, looking_ahead=True)
    ends = _expected_ends(picture, now_ms, run_ms_of)
    order = len(ends)
    waiting_jobs = len(picture.queue.entries)
    at_ms = now_ms
    turns = sorted({window.end_ms for window in picture.windows.values()})
    for _ in range(MAX_PASSES):
        before = len(cycle.starts)
        cycle.run(at_ms)
        new = len(cycle.starts) - before
        for end_ms, holds in cycle.started[len(cycle.started) - new :]:
            number = cycle.job_of[id(holds)][0].number
            starts.setdefault(number, at_ms)
            if run_ms_of is not None:
                waiting = picture.queue.entries[number].waiting
                left_ms = run_ms_of(waiting.job, waiting.attained_ms) - waiting.attained_ms
                end_ms = at_ms + max(1, left_ms)  # noqa: PLW2901 - one of two ways to know it
            order += 1
            heappush(ends, (end_ms, order, "", holds))
        turns = [end_ms for end_ms in turns if end_ms > at_ms]
        moments = [*turns[:1], *(end[0] for end in ends[:1])]
        if not moments or len(starts) == waiting_jobs or (until is not None and until in starts):
            break
        at_ms = min(moments)
        while ends and ends[0][0] <= at_ms:
            _, _, allocation_id, holds = heappop(ends)
            cycle.end(allocation_id, holds)


def _expected_ends(
    picture: Picture, now_ms: int, run_ms_of: RunTime | None
) -> list[tuple[int, int, str, list[Hold]]]:
    """What runs now, by when it should end."""
    ends: list[tuple[int, int, str, list[Hold]]] = []
    for order, key in enumerate(picture.ends):
        entry = picture.running[key[3]]
        running = entry.running
        end_ms = running.expected_end_ms
        if running.stopping:
            end_ms = now_ms
        elif run_ms_of is not None:
            ran_ms = running.attained_ms + max(0, now_ms - running.allocation.start_ms)
            end_ms = now_ms + run_ms_of(running.job, ran_ms) - ran_ms
        ends.append((max(end_ms, now_ms + 1), order, key[3], entry.holds))
    heapify(ends)
    return ends
