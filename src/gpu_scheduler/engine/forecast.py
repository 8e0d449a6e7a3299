"""Until when: roll the picture forward with expected run times, purely, and see who starts when."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from gpu_scheduler.engine.decide import Cycle
from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.slot import Hold

MAX_PASSES = 10_000


def forecast(picture: Picture, now_ms: int, *, until: int | None = None) -> dict[int, int]:
    """Expected starts by job number (of an array: of its next task).

    With `until`, stop when that job has its answer. A job without an answer starts later than the
    forecast looks, or needs something that no expected end brings.
    """
    draft = Draft(picture.index)
    cycle = Cycle(picture, draft, looking_ahead=True)
    starts: dict[int, int] = {}
    ends: list[tuple[int, int, str, list[Hold]]] = [
        (max(key[0], now_ms + 1), order, key[3], picture.running[key[3]].holds)
        for order, key in enumerate(picture.ends)
    ]
    heapify(ends)
    order = len(ends)
    numbers = {entry.waiting.job.id: number for number, entry in picture.queue.entries.items()}
    try:
        at_ms = now_ms
        for _ in range(MAX_PASSES):
            before = len(cycle.starts)
            cycle.run(at_ms)
            for start, (end_ms, holds) in zip(
                cycle.starts[before:], cycle.started[-(len(cycle.starts) - before) :], strict=False
            ):
                starts.setdefault(numbers[start.job_id], at_ms)
                order += 1
                heappush(ends, (end_ms, order, "", holds))
            if not ends or len(starts) == len(numbers) or (until is not None and until in starts):
                break
            at_ms = ends[0][0]
            while ends and ends[0][0] <= at_ms:
                _, _, allocation_id, holds = heappop(ends)
                cycle.end(allocation_id, holds)
    finally:
        draft.undo()
    return starts


def forecast_start(picture: Picture, now_ms: int, number: int) -> int | None:
    """The expected start of one waiting job, if it can be foreseen."""
    return forecast(picture, now_ms, until=number).get(number)
