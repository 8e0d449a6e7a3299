"""The server logs job events with a rate limit."""

import asyncio
from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, Record, SetNode, Started, Submit
from gpu_scheduler.server.background.job_logs import MAX_LINES_PER_SECOND, JobLog
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import EventRow
from tests.builders import a_core, a_job, a_node, an_array

Lines = list[Any]


class Clock:
    now_ms = 5_000


async def until(what: Callable[[], Any]) -> None:
    for _ in range(2_000):
        if what():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


def lines_of(work: Callable[[Loop, Lines, Clock], Any]) -> Lines:
    async def run(lines: Lines) -> None:
        clock = Clock()
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: clock.now_ms, sweep_ms=5)
        loop.start()
        loop.on_committed(JobLog(loop).on_commit)
        await loop.apply(SetNode(a_node()))
        try:
            await work(loop, lines, clock)
        finally:
            await loop.close()

    with capture_logs() as lines:
        asyncio.run(run(lines))
    return lines


def test_assignment_start_and_end_are_logged_with_gpus() -> None:
    async def work(loop: Loop, lines: Lines, _: Clock) -> None:
        await loop.apply(Submit(a_job(id="", user="ann", gpus=2)))
        await until(lambda: len(lines) == 1)
        (held,) = loop.store.allocations()
        await loop.apply(Started(held.id))
        await until(lambda: len(lines) == 2)
        await loop.apply(Ended(held.id, exit_code=0))
        await until(lambda: len(lines) == 3)

    told = lines_of(work)
    assert [line["event"] for line in told] == ["job assigned", "job started", "job completed"]
    assert (told[0]["gpu_ids"], told[0]["user"], told[0]["required_gpus"]) == ([0, 1], "ann", 2.0)


def test_logging_does_not_keep_an_array_from_ending() -> None:
    async def work(loop: Loop, lines: Lines, _: Clock) -> None:
        await loop.apply(Submit(an_array(id="", tasks="0-2")))
        await until(lambda: len(loop.store.allocations()) == 3)
        for held in loop.store.allocations():
            await loop.apply(Started(held.id))
        for held in loop.store.allocations():
            await loop.apply(Ended(held.id, exit_code=0))
            await until(lambda: lines[-1]["event"] == "job completed")
        await until(lambda: not loop.core.state.jobs)

    lines = lines_of(work)
    assert [line.get("task") for line in lines if line["event"] == "job completed"][-1] is None


def test_burst_is_truncated_and_counted() -> None:
    async def work(loop: Loop, lines: Lines, clock: Clock) -> None:
        burst = [EventRow(at_ms=0, kind="failed", job_id=f"job-{n}") for n in range(100)]
        await loop.apply(Record(tuple(burst)))
        clock.now_ms = 6_000
        await loop.apply(Record((EventRow(at_ms=0, kind="cancelled", job_id="job-1"),)))
        await until(lambda: lines and lines[-1]["event"] == "job cancelled")

    lines = lines_of(work)
    assert sum(line["event"] == "job failed" for line in lines) == MAX_LINES_PER_SECOND
    assert [line["events"] for line in lines if line["event"] == "further job events omitted"] == [
        100 - MAX_LINES_PER_SECOND
    ]
