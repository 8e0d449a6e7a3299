"""Timers that the core keeps."""

from gpu_scheduler.control.messages import Ended, RunCycle, Submit
from gpu_scheduler.control.state import FEW_TIMERS
from tests.builders import HOUR, a_core, a_job, a_node


def test_timers_of_ended_jobs_are_removed_early() -> None:
    core = a_core(nodes=[a_node(gpus=1)])
    for number in range(1, 2 * FEW_TIMERS):
        core.apply(Submit(a_job(number=number, max_runtime_ms=HOUR)), number)
        core.apply(RunCycle(), number)
        core.apply(Ended(f"j{number}.1"), number)
    assert core.next_timer_ms() == HOUR + FEW_TIMERS + 1


def test_timer_of_running_job_is_kept() -> None:
    core = a_core(nodes=[a_node(gpus=1)])
    core.apply(Submit(a_job(number=1, max_runtime_ms=HOUR)), 0)
    core.apply(RunCycle(), 0)
    for _ in range(2 * FEW_TIMERS):
        core.state.set_timer(HOUR + 1, "limit", "a job that is gone")
    assert core.next_timer_ms() == HOUR
