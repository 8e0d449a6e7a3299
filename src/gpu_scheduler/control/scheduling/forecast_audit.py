"""The first start estimate of each waiting job, stored until it starts, to measure its error.

Also the corrected end of a job that runs longer than expected.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import NoteEstimates
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.snapshot import Running
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.store.rows import EstimateRow, Removed


def note(state: ControlState, message: NoteEstimates, now_ms: int, outcome: Outcome) -> None:
    """Store the first estimate of each job that waits for its first start."""
    for estimate in message.estimates:
        record = state.jobs.get(estimate.job_id)
        if record is None or not record.queued or record.has_started:
            continue
        if estimate.job_id in state.estimates:
            continue
        row = EstimateRow(
            job_id=estimate.job_id,
            tenant=record.job.tenant,
            user=record.job.user,
            made_ms=now_ms,
            promised_ms=max(now_ms, estimate.start_ms),
            basis=estimate.basis,
        )
        state.estimates[estimate.job_id] = row
        outcome.writes.append(row)


def fulfil(state: ControlState, job_id: str, now_ms: int, outcome: Outcome) -> None:
    """A job starts for the first time: store the time beside its estimate."""
    row = state.estimates.pop(job_id, None)
    if row is not None:
        outcome.writes.append(replace(row, start_ms=now_ms))


def withdraw(state: ControlState, job_id: str, outcome: Outcome) -> None:
    """Delete the estimate of a job that was changed or has ended."""
    if state.estimates.pop(job_id, None) is not None:
        outcome.writes.append(Removed(EstimateRow, job_id))


LEAST_STEP_MS = 1_000
LEAST_STEP_PERCENT = 1
"""An exceeded expectation grows by at least this much, so that it is not exceeded again at once."""


def expected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """When a running job should end; corrected now if that time has passed since the last cycle."""
    if running.expected_end_ms >= now_ms or running.stopping:
        return running.expected_end_ms
    return corrected_end_ms(predictor, running, now_ms)


def corrected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """The new expected end of a job that runs longer than expected."""
    elapsed_ms = max(0, now_ms - running.allocation.start_ms)
    if elapsed_ms < LEAST_STEP_MS:
        # Saves calls of the predictor for very short jobs.
        return now_ms + LEAST_STEP_MS
    total_ms = running.attained_ms + elapsed_ms
    expected_ms = predictor.exceed(running.job, total_ms, now_ms)
    least_ms = max(LEAST_STEP_MS, elapsed_ms * LEAST_STEP_PERCENT // 100)
    return now_ms + max(least_ms, expected_ms - total_ms)
