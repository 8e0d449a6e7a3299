"""Many jobs that are alike, accepted at once: what they have in common is worked out once.

It does what `submit` does for each of them, and nothing else.
"""

from __future__ import annotations

import sys

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.eligible import protect_later
from gpu_scheduler.control.life import JobLife
from gpu_scheduler.control.messages import Series
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.predict.socket import expect_alike
from gpu_scheduler.store.rows import NewJobs
from gpu_scheduler.store.template import Template

OWN = ("id", "number", "name", "command")


def is_plain(book: Book, series: Series, now_ms: int) -> bool:
    """Tell whether nothing can keep such jobs from the queue, and none of them is an array."""
    job = series.job
    return bool(
        book.picture.index.by_id
        and series.launch.runner is Runner.PROCESS
        and not job.id
        and not job.hold
        and not job.dependencies
        and job.array is None
        and job.begin_ms <= now_ms
    )


def accept(book: Book, series: Series, job: Job, now_ms: int, outcome: Outcome) -> None:
    """Queue plain jobs. `job` is what they have in common, checked and stamped."""
    first = book.next_number
    numbers = range(first, first + len(series.names))
    ids = [f"job-{number}" for number in numbers]
    names = map(sys.intern, series.names)
    jobs = list(map(Template(job, OWN).copy, ids, numbers, names, series.commands))
    expected = expect_alike(book.predictor, jobs, now_ms)
    new_life = Template(JobLife(job), ("job", "expected_ms")).copy
    lives = list(map(new_life, jobs, expected))
    book.lives.update(zip(ids, lives, strict=True))
    queue_alike(book, lives, now_ms)
    book.next_number += len(jobs)
    book.count_queued(job, len(jobs))
    outcome.jobs += jobs
    if series.environment is not None:
        outcome.writes.append(series.environment)
    outcome.writes.append(
        NewJobs(at_ms=now_ms, jobs=tuple(jobs), expected_ms=tuple(expected), launch=series.launch)
    )


def queue_alike(book: Book, lives: list[JobLife], now_ms: int) -> None:
    """Queue plain jobs that nothing keeps from it, and that have waited for equally long."""
    first = lives[0]
    waiting = Waiting(job=first.job, expected_ms=1, since_ms=now_ms, waited_ms=first.waited_ms)
    new_waiting = Template(waiting, ("job", "expected_ms")).copy
    book.picture.enqueue_alike([new_waiting(life.job, max(1, life.expected_ms)) for life in lives])
    for life in lives:
        life.queued = True
        life.since_ms = now_ms
    for life in lives if book.policy.feedback.protect_after_ms else ():
        protect_later(book, life, now_ms)
    book.changed = True
