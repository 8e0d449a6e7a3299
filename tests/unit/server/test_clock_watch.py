"""The leader watches its wall clock: events, the calendar and the stored clock."""

import asyncio
from collections.abc import Awaitable, Callable

from gpu_scheduler.control.clock import HOLD_MS, RECORD, SchedulerClock, StoredClock
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Submit
from gpu_scheduler.server.background.clock_watch import ClockWatch, resume_clock
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import DAY, MINUTE, a_core, a_job, a_node
from tests.interface.event_record import check_events

WALL_MS = 1_700_000_000_000


class Leader:
    """A control loop and its clock, on times that the test sets."""

    def __init__(self, store: MemoryStore, *, boot: str = "boot-1", wall_ms: int = WALL_MS) -> None:
        self.store = store
        self.wall_ms, self.boot_ms = wall_ms, 0
        self.clock = SchedulerClock(
            wall_ms=lambda: self.wall_ms,
            boot_ms=lambda: self.boot_ms,
            boot_id=lambda: boot,
            is_synchronised=lambda: False,
        )
        resume_clock(self.clock, store)
        self.loop = Loop(
            store,
            lambda: a_core(nodes=[a_node()]),
            self.clock.now_ms,
            calendar=lambda: self.clock.calendar,
        )
        self.watch = ClockWatch(self.loop, self.clock)

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms

    def events(self) -> list[tuple[str, dict[str, object]]]:
        rows = [row for _, row in self.store.events() if row.kind.startswith("clock")]
        check_events(rows)
        return [(row.kind, dict(row.data)) for row in rows]

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def serve() -> None:
            self.loop.start()
            try:
                await work()
            finally:
                await self.loop.close()

        asyncio.run(serve())


def test_step_is_event_and_metric_and_calendar_follows_step_back() -> None:
    leader = Leader(MemoryStore())

    async def work() -> None:
        await leader.loop.apply(Submit(a_job(number=1, begin_ms=WALL_MS + MINUTE)))
        leader.wall_ms += 10 * DAY
        await leader.watch.look()
        assert leader.loop.core.state.calendar.offset_ms == 0
        assert leader.loop.loop_metrics.clock_offset_ms == 10 * DAY
        leader.wall_ms -= 11 * DAY
        await leader.watch.look()
        assert leader.loop.core.state.calendar.offset_ms == -DAY

    leader.run(work)
    assert leader.events() == [
        ("clock_stepped", {"by_ms": 10 * DAY, "held_back": 1}),
        ("clock_stepped", {"by_ms": -11 * DAY, "held_back": 0}),
    ]
    assert leader.loop.loop_metrics.clock_steps == 2
    row = leader.store.cursor(RECORD)
    assert row is not None
    assert StoredClock.from_row(row).calendar.offset_ms == -DAY


def test_idle_cluster_catches_up_with_step_that_lasts() -> None:
    leader = Leader(MemoryStore())

    async def work() -> None:
        leader.wall_ms += 30 * MINUTE
        await leader.watch.look()
        leader.pass_time(HOLD_MS)
        await leader.watch.look()

    leader.run(work)
    assert leader.clock.now_ms() == leader.wall_ms
    assert leader.loop.core.state.calendar.offset_ms == 0


def test_next_leader_continues_stored_time_and_reports_gap() -> None:
    store = MemoryStore()
    first = Leader(store)
    first.run(first.watch.look)
    second = Leader(store, boot="boot-2", wall_ms=WALL_MS - DAY)
    assert second.clock.now_ms() == WALL_MS

    async def work() -> None:
        watching = asyncio.create_task(second.watch.run())
        await anext(second.loop.subscribe(0))
        watching.cancel()

    second.run(work)
    assert second.events()[0] == ("clock_gap", {"wall_ms": -DAY, "counted_ms": 0})
