"""Adding, looking at the first and taking, on a queue of 100,000 jobs of 500 shapes.

The value is the rate of whole lives: each job is added once and taken once, in the order of the
queue. The floor is a binary heap of (key, number), which knows neither shapes nor accounts.
"""

from __future__ import annotations

from heapq import heappop, heappush

from benchmarks.backlog import Backlog
from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.stopwatch import Stopwatch
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.queue import Entry, Queue

JOBS = 100_000
PEEKS = 2_000
SEED = 1


def measure(repeats: int) -> Result:
    """Time each operation on its own."""
    show(f"queue: making {JOBS} jobs")
    entries = _entries()
    in_order = sorted(entries, key=lambda entry: (entry.key, entry.number))
    watches = {name: Stopwatch() for name in ("add", "peek", "take", "heap")}
    for lap in range(repeats):
        show(f"queue: {lap + 1} of {repeats}")
        _run_queue(entries, in_order, watches)
        _run_heap(entries, watches["heap"])
    whole = watches["add"].wall + watches["take"].wall
    return result(
        "queue",
        JOBS / whole,
        "jobs added and taken/s",
        floor=JOBS / watches["heap"].wall,
        repeats=repeats,
        cpu_value=JOBS / (watches["add"].cpu + watches["take"].cpu),
        adds_per_second=rounded(JOBS / watches["add"].wall),
        takes_per_second=rounded(JOBS / watches["take"].wall),
        peeks_per_second=rounded(PEEKS / watches["peek"].wall),
        pending=JOBS,
    )


def _entries() -> list[Entry]:
    """Entries as the cluster state makes them, before their groups hold anything."""
    backlog = Backlog(preset("fair"), SEED, nodes=10)
    backlog.wait(JOBS)
    entries = list(backlog.state.queue.entries.values())
    for entry in entries:
        backlog.state.queue.remove(entry.number)
    return entries


def _run_queue(entries: list[Entry], in_order: list[Entry], watches: dict[str, Stopwatch]) -> None:
    queue = Queue()
    with watches["add"].lap():
        for entry in entries:
            entry.group = queue.group(entry.group.key)
            queue.add(entry)
    with watches["peek"].lap():
        for _ in range(PEEKS):
            queue.peek()
    if queue.peek() is not in_order[0]:
        raise AssertionError("the queue has another first job than its order")
    with watches["take"].lap():
        for entry in in_order:
            queue.remove(entry.number)
    if len(queue):
        raise AssertionError(f"{len(queue)} jobs are left in the queue")


def _run_heap(entries: list[Entry], watch: Stopwatch) -> None:
    heap: list[tuple[int, int]] = []
    with watch.lap():
        for entry in entries:
            heappush(heap, (entry.key, entry.number))
        while heap:
            heappop(heap)
