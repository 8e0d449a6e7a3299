"""An admin corrects the run time for which an ended attempt was charged.

The row of the attempt gets another end, from which reports and bills are computed; totals, budgets
and fair share change by the difference.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import CorrectUsage
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job, display_name
from gpu_scheduler.store.rows import AttemptRow

REMEMBERED = 1_000
"""How many corrections are remembered, since a batch is stored only after all its messages."""


def correct_usage(
    state: ControlState, message: CorrectUsage, now_ms: int, outcome: Outcome
) -> None:
    """Change the end of the attempt, and charge or take back the difference."""
    job, attempt = message.job, message.attempt
    before_ms = state.corrected_ends.get(attempt.allocation_id, attempt.end_ms)
    after_ms = attempt.start_ms + message.run_ms
    if message.run_ms < 0 or after_ms > now_ms:
        raise InvalidRequest(
            f"attempt {attempt.attempt} of {display_name(job.id)} cannot have run for "
            f"{message.run_ms / 1000:g} s: it started {(now_ms - attempt.start_ms) / 1000:.0f} s "
            "ago; give a shorter run time"
        )
    if after_ms != before_ms:
        sign = 1 if after_ms > before_ms else -1
        part = _interval(job, attempt, min(before_ms, after_ms), max(before_ms, after_ms))
        state.usage_totals.correct(part, sign)
        state.weekly_usage.add(part, sign)
        for account in (job.tenant, (job.tenant, job.user)):
            state.decayed_usage.correct(
                account, part.gpu_milli, part.start_ms, part.end_ms, now_ms, sign
            )
            state.charged[account] = None
        state.changed = True
    state.corrected_ends[attempt.allocation_id] = after_ms
    if len(state.corrected_ends) > REMEMBERED:
        del state.corrected_ends[next(iter(state.corrected_ends))]
    outcome.writes.append(replace(attempt, end_ms=after_ms))
    data = (
        ("attempt", attempt.attempt),
        ("from_ms", before_ms - attempt.start_ms),
        ("to_ms", message.run_ms),
        ("reason", message.reason),
    )
    outcome.job_event(job, "usage_corrected", now_ms, task=attempt.task, data=data)


def _interval(job: Job, attempt: AttemptRow, start_ms: int, end_ms: int) -> UsageInterval:
    """What the attempt held during this time."""
    placements = attempt.placements
    gpu_milli = sum(placement.gpu_milli for placement in placements)
    return UsageInterval(
        allocation_id=attempt.allocation_id,
        job_id=job.id,
        task=attempt.task,
        tenant=job.tenant,
        user=job.user,
        attempt=attempt.attempt,
        start_ms=start_ms,
        end_ms=end_ms,
        gpu_milli=gpu_milli,
        gpu_memory_mb=sum(placement.gpu_memory_mb for placement in placements),
        cpu_milli=sum(placement.cpu_milli for placement in placements),
        memory_mb=sum(placement.memory_mb for placement in placements),
        gpu_models=attempt.gpu_models or ((("", gpu_milli),) if gpu_milli else ()),
    )
