"""What a message is about, before it is applied: which jobs it names, and what it would submit."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.messages import (
    Command,
    CreateService,
    Fact,
    Retry,
    Series,
    Submit,
    SubmitAll,
    Update,
    UpdateService,
)


def jobs_named_in(message: Command | Fact) -> list[str]:
    """The jobs whose end may matter to it, also if that was long ago."""
    if isinstance(message, Submit | Series):
        return [dependency.job_id for dependency in message.job.dependencies]
    if isinstance(message, SubmitAll):
        return [d.job_id for s in message.submissions for d in s.job.dependencies]
    if isinstance(message, Retry):
        return [message.job_id]
    if isinstance(message, Update):
        dependencies = dict(message.changes).get("dependencies", ())
        return [dependency.job_id for dependency in dependencies]
    return []


def submissions_in(book: Book, message: Command | Fact) -> tuple[Submit | Series, ...]:
    """What it would let run, for the rules of the site."""
    if isinstance(message, Submit | Series):
        return (message,)
    if isinstance(message, SubmitAll):
        return message.submissions
    if isinstance(message, CreateService):
        return (Submit(message.service.job, message.service.launch),)
    if isinstance(message, UpdateService):
        return (Submit(message.wanted.job, message.wanted.launch),)
    if isinstance(message, Update) and message.job_id in book.lives:
        job = book.lives[message.job_id].job
        return (Submit(replace(job, **dict(message.changes))),)
    return ()
