"""What a job has saved, as it shows by touching its checkpoint file."""

from __future__ import annotations

from gpu_scheduler.agent.launcher import scratch
from gpu_scheduler.agent.launcher.attempt import Attempt
from gpu_scheduler.agent.work import Saved


def newly_saved(attempt: Attempt) -> Saved | None:
    """What to report if the job has saved its work since the last look."""
    touched = scratch.checkpoint_time(attempt.work) if attempt.work.scratch_dir else 0
    if touched <= attempt.checkpoint_ns:
        return None
    attempt.checkpoint_ns = touched
    return saved_report(attempt)


def saved_report(attempt: Attempt) -> Saved:
    """When the job saved its work last."""
    return Saved(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        at_ms=attempt.checkpoint_ns // 1_000_000,
    )
