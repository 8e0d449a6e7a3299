"""When a job should end that has run longer than was expected.

Expectations are corrected by the cycles, which come when they decide something. Whoever tells a
time meanwhile has to ask anew, or would say that it ends now for as long as it runs.
"""

from __future__ import annotations

from gpu_scheduler.model.snapshot import Running
from gpu_scheduler.predict.socket import Predictor

LEAST_STEP_MS = 1_000
LEAST_STEP_PERCENT = 1
"""An expectation that was exceeded grows by at least so much, so that it is not exceeded again
at the next moment, however short-sighted the predictor is."""


def expected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """When it should end; if that time has passed, by what is known of jobs that ran as long."""
    if running.expected_end_ms >= now_ms or running.stopping:
        return running.expected_end_ms
    return corrected_end_ms(predictor, running, now_ms)


def corrected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """When a job should end that should have ended already."""
    elapsed_ms = max(0, now_ms - running.allocation.start_ms)
    if elapsed_ms < LEAST_STEP_MS:
        # Before that there is no use in asking, and very short jobs would ask all the time.
        return now_ms + LEAST_STEP_MS
    total_ms = running.attained_ms + elapsed_ms
    expected_ms = predictor.exceed(running.job, total_ms, now_ms)
    least_ms = max(LEAST_STEP_MS, elapsed_ms * LEAST_STEP_PERCENT // 100)
    return now_ms + max(least_ms, expected_ms - total_ms)
