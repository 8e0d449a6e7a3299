"""Who may do what. A caller and a message come in; silence, or a refusal, comes out.

A job of somebody else is refused as if it did not exist, so that a refusal tells nothing about it.
"""

from __future__ import annotations

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    Fact,
    Hold,
    Release,
    Reprioritise,
    Retry,
    Series,
    Submit,
    SubmitAll,
    Update,
)
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, UnknownThing
from gpu_scheduler.model.job import Dependency, called


def check(book: Book, caller: Caller, message: Command | Fact) -> None:
    """Refuse what the caller may not do."""
    if caller.is_admin:
        return
    match message:
        case Submit():
            _check_own(book, caller, message)
        case SubmitAll(submissions):
            for submission in submissions:
                _check_own(book, caller, submission)
        case Cancel() | Hold() | Release() | Reprioritise() | Update() | Retry():
            if not caller.may_touch(owner_of(book, message.job_id)):
                raise UnknownThing(f"{called(message.job_id)} is not known")
            if isinstance(message, Update):
                _check_dependencies(book, caller, dict(message.changes).get("dependencies", ()))
        case _:
            raise Forbidden(
                f"user '{caller.user}' asked for what only an admin may do "
                f"({type(message).__name__}); ask the person who runs the scheduler"
            )


def _check_dependencies(book: Book, caller: Caller, dependencies: tuple[Dependency, ...]) -> None:
    """To wait for a job of somebody else would tell how that one ends."""
    for dependency in dependencies:
        if not caller.may_touch(owner_of(book, dependency.job_id)):
            raise InvalidRequest(
                f"the job depends on {called(dependency.job_id)}, which is not known; "
                "submit that one first"
            )


def owner_of(book: Book, job_id: str) -> str:
    """Whose job this is; of a job that is not known, nobody's."""
    life = book.lives.get(job_id)
    if life is not None:
        return life.job.user
    end = book.ended.get(job_id)
    return end.user if end is not None else ""


def _check_own(book: Book, caller: Caller, submission: Submit | Series) -> None:
    _check_dependencies(book, caller, submission.job.dependencies)
    launch = submission.launch
    if submission.job.user != caller.user or (launch is not None and launch.uid != caller.uid):
        raise Forbidden(
            f"user '{caller.user}' tried to submit a job as '{submission.job.user}'; "
            "jobs run as the user who submits them"
        )
