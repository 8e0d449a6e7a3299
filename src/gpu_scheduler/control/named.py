"""What a message is about, before it is applied: which jobs it names, and what it would submit.

And the message as the rules of a site let it be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.service import Service

Rules = Callable[[Submit | Series], Submit | Series]
"""Refuses what a site does not want to run, and says what is to be run otherwise."""


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


def as_allowed(book: Book, message: Command | Fact, rules: Rules) -> Command | Fact:
    """The message as it is to be done, or a refusal that names the `index` of the first bad job."""
    asked = submissions_in(book, message)
    allowed: list[Submit | Series] = []
    index = 0
    for submission in asked:
        try:
            allowed.append(rules(submission))
        except SchedulerError as error:
            error.index = index + (error.index or 0)
            raise
        index += submission.job_count
    is_same = all(one is other for one, other in zip(asked, allowed, strict=True))
    return message if is_same else _with(message, allowed)


def _with(message: Command | Fact, allowed: Sequence[Submit | Series]) -> Command | Fact:
    """The same message, about these submissions; what changes a waiting job has none."""
    if isinstance(message, Submit | Series):
        return allowed[0]
    if isinstance(message, SubmitAll):
        return replace(message, submissions=tuple(allowed))
    if isinstance(message, CreateService):
        return replace(message, service=_running(message.service, allowed[0]))
    if isinstance(message, UpdateService):
        return replace(message, wanted=_running(message.wanted, allowed[0]))
    return message


def _running(service: Service, allowed: Submit | Series) -> Service:
    return replace(service, launch=allowed.launch or service.launch)
