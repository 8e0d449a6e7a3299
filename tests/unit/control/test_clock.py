from gpu_scheduler.control.writer import SteadyClock


class Clocks:
    def __init__(self) -> None:
        self.wall = 1_000_000
        self.steady = 500

    def clock(self) -> SteadyClock:
        return SteadyClock(wall_ms=lambda: self.wall, monotonic_ms=lambda: self.steady)

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.steady += ms


def test_clock_follows_wall_clock() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.advance(70)
    assert clock.now_ms() == 1_000_070


def test_clock_is_monotonic_when_wall_clock_steps_back() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.advance(10)
    clocks.wall -= 3_600_000
    assert clock.now_ms() == 1_000_010
    clocks.advance(5)
    assert clock.now_ms() == 1_000_015


def test_clock_follows_wall_clock_step_forward() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    clocks.wall += 3_600_000
    assert clock.now_ms() == 4_600_000


def test_clock_starts_no_earlier_than_last_stored_time() -> None:
    clock = Clocks().clock()
    clock.not_before(2_000_000)
    assert clock.now_ms() == 2_000_000
