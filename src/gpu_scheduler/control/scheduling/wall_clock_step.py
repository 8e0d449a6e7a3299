"""Begin times and advance reservations follow the calendar when the wall clock was set."""

from __future__ import annotations

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.queueing import (
    BEGIN,
    enqueue_if_ready,
    leave_queue,
    wait_for_begin,
    withdraw_estimate,
)
from gpu_scheduler.control.messages import SetCalendar
from gpu_scheduler.control.scheduling import reservation_commands
from gpu_scheduler.control.state import ControlState


def set_calendar(state: ControlState, message: SetCalendar, now_ms: int, outcome: Outcome) -> None:
    """Apply another relation of calendar times to scheduler time.

    A job that has not started waits again if its begin time is in the future again.
    """
    by_ms = state.calendar.offset_ms - message.calendar.offset_ms
    state.calendar = message.calendar
    if not by_ms:
        return
    reservation_commands.move_all(state, by_ms, now_ms)
    for record in list(state.jobs.values()):
        if not record.job.begin_ms or not record.waits:
            continue
        was_waiting = record.is_waiting_on(BEGIN)
        wait_for_begin(state, record, now_ms)
        if record.is_waiting_on(BEGIN) and not was_waiting:
            leave_queue(state, record, now_ms)
            withdraw_estimate(state, record.job.id, outcome)
            outcome.keep(record)
        elif was_waiting and not record.is_waiting_on(BEGIN):
            enqueue_if_ready(state, record, now_ms, outcome)
