"""Scheduler time and the calendar, on clocks that the test sets."""

from gpu_scheduler.control.clock import (
    HOLD_MS,
    LARGE_HOLD_MS,
    LONGEST_GAP_MS,
    SchedulerClock,
    StoredClock,
)

DAY_MS = 86_400_000
WALL_MS = 1_700_000_000_000


class Clocks:
    """The clocks of a machine."""

    def __init__(self, boot: str = "boot-1", wall_ms: int = WALL_MS, boot_ms: int = 500) -> None:
        self.wall_ms = wall_ms
        self.boot_ms = boot_ms
        self.boot = boot
        self.synchronised = False

    def clock(self) -> SchedulerClock:
        return SchedulerClock(
            wall_ms=lambda: self.wall_ms,
            boot_ms=lambda: self.boot_ms,
            boot_id=lambda: self.boot,
            is_synchronised=lambda: self.synchronised,
        )

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms


def calendar_ms(clock: SchedulerClock) -> int:
    now_ms = clock.now_ms()
    return now_ms + clock.calendar.offset_ms


def continued(
    clocks: Clocks, stored: StoredClock, *, last_ms: int = 0, is_idle: bool = False
) -> SchedulerClock:
    clock = clocks.clock()
    clock.resume(stored, last_ms, is_idle=is_idle)
    return clock


def test_scheduler_time_is_wall_time_while_no_clock_is_set() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.advance(70)
    assert clock.now_ms() == WALL_MS + 70
    assert clock.calendar.offset_ms == 0
    assert clock.take_steps() == []


def test_small_step_ahead_is_followed_at_once() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall_ms += 1_500
    assert clock.now_ms() == WALL_MS + 1_500
    assert clock.take_steps() == []


def test_step_ahead_and_back_changes_neither_duration_nor_calendar() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall_ms += 10 * DAY_MS
    clocks.advance(60_000)
    assert clock.now_ms() == WALL_MS + 60_000
    assert calendar_ms(clock) == WALL_MS + 60_000
    assert clock.held_back_ms == 10 * DAY_MS
    clocks.wall_ms -= 10 * DAY_MS
    clocks.advance(60_000)
    assert clock.now_ms() == WALL_MS + 120_000
    assert calendar_ms(clock) == WALL_MS + 120_000
    assert [step.by_ms for step in clock.take_steps()] == [10 * DAY_MS, -10 * DAY_MS]


def test_step_back_moves_calendar_at_once_and_durations_not() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.advance(10)
    clocks.wall_ms -= 3_600_000
    assert clock.now_ms() == WALL_MS + 10
    assert calendar_ms(clock) == WALL_MS + 10 - 3_600_000
    clocks.advance(5)
    assert clock.now_ms() == WALL_MS + 15
    clocks.wall_ms += 3_600_000
    assert calendar_ms(clock) == WALL_MS + 15, "the right time is restored without a delay"


def test_calendar_follows_step_ahead_that_lasts() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall_ms += 1_800_000
    clock.now_ms()
    clocks.advance(HOLD_MS - 1)
    clock.now_ms()
    assert clock.calendar.offset_ms == 0
    clocks.advance(1)
    assert abs(calendar_ms(clock) - clocks.wall_ms) <= 1
    assert clock.now_ms() - WALL_MS <= HOLD_MS * 1.001


def test_calendar_follows_large_step_soon_only_if_time_service_confirms_it() -> None:
    for synchronised, hold_ms in ((True, HOLD_MS), (False, LARGE_HOLD_MS)):
        clocks = Clocks()
        clocks.synchronised = synchronised
        clock = clocks.clock()
        clocks.wall_ms += 10 * DAY_MS
        clock.now_ms()
        clocks.advance(hold_ms - 1)
        clock.now_ms()
        assert clock.calendar.offset_ms == 0
        clocks.advance(1)
        assert abs(calendar_ms(clock) - clocks.wall_ms) <= 1


def test_scheduler_time_approaches_calendar_by_one_part_in_a_thousand() -> None:
    for offset_ms in (30_000, -30_000):
        clocks = Clocks()
        clock = clocks.clock()
        clocks.wall_ms += offset_ms
        clock.now_ms()
        clocks.advance(HOLD_MS)
        before_ms = clock.now_ms()
        for _ in range(10_000):
            clocks.advance(100)
            now_ms = clock.now_ms()
            assert 99 <= now_ms - before_ms <= 101
            before_ms = now_ms
        clocks.advance(100_000_000)
        assert abs(clock.now_ms() - clocks.wall_ms) <= 2_000


def test_idle_cluster_catches_up_with_calendar() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall_ms += 1_800_000
    clock.now_ms()
    clock.catch_up()
    assert clock.now_ms() == WALL_MS, "a step that is held back is not followed"
    clocks.advance(HOLD_MS)
    clock.catch_up()
    assert clock.now_ms() == clocks.wall_ms
    assert clock.calendar.offset_ms == 0


def test_restart_on_same_boot_continues_whatever_the_wall_clock_says() -> None:
    clocks = Clocks()
    stored = clocks.clock().stored()
    clocks.advance(5_000)
    for wall_ms in (WALL_MS + 10 * DAY_MS, WALL_MS - 10 * DAY_MS):
        clocks.wall_ms = wall_ms
        clock = continued(clocks, stored)
        assert clock.now_ms() == WALL_MS + 5_000
        assert clock.gap is None
        assert clock.calendar.gap_ms == 0


def test_failover_counts_gap_in_wall_time() -> None:
    stored = Clocks().clock().stored()
    for gap_ms, estimated_ms in ((40_000, 0), (3_600_000, 3_600_000)):
        clock = continued(Clocks("boot-2", WALL_MS + gap_ms, 77), stored)
        assert clock.now_ms() == WALL_MS + gap_ms
        assert clock.gap is None
        assert clock.calendar.gap_within(WALL_MS - 1, WALL_MS + DAY_MS) == estimated_ms


def test_large_gap_is_limited_and_reported_while_jobs_run() -> None:
    stored = Clocks().clock().stored()
    clock = continued(Clocks("boot-2", WALL_MS + 10 * DAY_MS), stored)
    assert clock.now_ms() == WALL_MS + LONGEST_GAP_MS
    assert clock.gap is not None
    assert (clock.gap.wall_ms, clock.gap.counted_ms) == (10 * DAY_MS, LONGEST_GAP_MS)
    assert clock.calendar.offset_ms == 0


def test_large_gap_counts_if_no_job_runs() -> None:
    stored = Clocks().clock().stored()
    clock = continued(Clocks("boot-2", WALL_MS + 10 * DAY_MS), stored, is_idle=True)
    assert clock.now_ms() == WALL_MS + 10 * DAY_MS
    assert clock.gap is None


def test_negative_gap_counts_as_none_and_is_reported() -> None:
    stored = Clocks().clock().stored()
    clock = continued(Clocks("boot-2", WALL_MS - DAY_MS), stored)
    assert clock.now_ms() == WALL_MS
    assert clock.gap is not None
    assert clock.gap.counted_ms == 0
    assert calendar_ms(clock) == WALL_MS - DAY_MS


def test_time_never_lies_before_newest_stored_time() -> None:
    stored = Clocks().clock().stored()
    clock = continued(Clocks(), stored, last_ms=WALL_MS + 60_000)
    assert clock.now_ms() == WALL_MS + 60_000
    first = Clocks().clock()
    first.resume(None, WALL_MS + DAY_MS, is_idle=False)
    assert first.now_ms() == WALL_MS + DAY_MS
    assert calendar_ms(first) == WALL_MS, "a clock that was ahead in an older version"


def test_stored_clock_is_read_as_it_was_written() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall_ms -= DAY_MS
    stored = clock.stored()
    assert stored.calendar.offset_ms == -DAY_MS
    assert StoredClock.from_row(stored.row()) == stored
