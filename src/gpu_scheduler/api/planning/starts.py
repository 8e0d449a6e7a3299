"""The expected starts of a roll-out in another process, with their ranges, limits and bases.

What the roll-out has found comes in; the fields `expected_start...` of a form go out, as in the
explanation of a job: the range is learnt from the jobs that have started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpu_scheduler.api.expected_times import (
    UNKNOWN,
    ExpectedTime,
    Explainer,
    run_time_text,
    within_limits,
)
from gpu_scheduler.engine.forecast import Foresight
from gpu_scheduler.engine.what_if import Question
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job
from gpu_scheduler.wire.times import write_time


class StartForm(Protocol):
    """A form with an expected start."""

    expected_start: str | None
    expected_start_earliest: str | None
    expected_start_latest: str | None
    expected_start_limit: str | None
    expected_start_after: str | None
    expected_start_basis: str


class PlannedStarts:
    """Fills in the expected starts of one answer for one caller."""

    def __init__(self, explainer: Explainer, question: Question, caller: Caller) -> None:
        """The question says when the roll-out began, and what ran then."""
        self._explainer = explainer
        self._now_ms = question.now_ms
        self._running = {each.job.number: each for each in question.snapshot.running}
        self._caller = caller
        self._texts: dict[int, str] = {}

    def fill_in(
        self,
        form: StartForm,
        job: Job,
        basis: str,
        found: Foresight,
        limit_starts: Mapping[int, int],
    ) -> ExpectedTime:
        """Fill in the start of a job, unless it depends on unknown run times; return it."""
        start_ms = found.starts.get(job.number)
        if start_ms is None or found.guesses.get(job.number):
            return UNKNOWN
        limit_ms = limit_starts.get(job.number)
        start = self._explainer.ranged_at(self._now_ms, start_ms, basis)
        start = within_limits(start, limit_ms)
        form.expected_start = write_time(start.at_ms)
        form.expected_start_earliest = write_time(start.earliest_ms)
        form.expected_start_latest = write_time(start.latest_ms)
        form.expected_start_limit = write_time(limit_ms)
        after = found.after.get(job.number)
        if after is not None and self._caller.may_see(job.user, job.tenant):
            form.expected_start_after = after.id
            form.expected_start_basis = self._run_time_text(after)
        return start

    def _run_time_text(self, job: Job) -> str:
        text = self._texts.get(job.number)
        if text is None:
            predictor = self._explainer.service.core.state.predictor
            running = self._running.get(job.number)
            text = self._texts[job.number] = run_time_text(predictor, job, running, self._now_ms)
        return text
