"""What waiting jobs were first told about their start, kept until they start and judged then."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Estimate
from gpu_scheduler.store.rows import EstimateRow, RemovedEstimate


def note(book: Book, estimates: tuple[Estimate, ...], now_ms: int, outcome: Outcome) -> None:
    """Keep the first estimate of each job that still waits for its first start."""
    for estimate in estimates:
        life = book.lives.get(estimate.job_id)
        if life is None or not life.queued or life.has_started:
            continue
        if estimate.job_id in book.estimates:
            continue
        row = EstimateRow(
            job_id=estimate.job_id,
            tenant=life.job.tenant,
            user=life.job.user,
            made_ms=now_ms,
            promised_ms=max(now_ms, estimate.start_ms),
            basis=estimate.basis,
        )
        book.estimates[estimate.job_id] = row
        outcome.writes.append(row)


def fulfil(book: Book, job_id: str, now_ms: int, outcome: Outcome) -> None:
    """A job starts for the first time: that is what its estimate is judged by."""
    row = book.estimates.pop(job_id, None)
    if row is not None:
        outcome.writes.append(replace(row, start_ms=now_ms))


def withdraw(book: Book, job_id: str, outcome: Outcome) -> None:
    """Somebody changed the job, or it ended: what was said about it before is void."""
    if book.estimates.pop(job_id, None) is not None:
        outcome.writes.append(RemovedEstimate(job_id))
