"""Errors of a server, as the exceptions of this project; and those that only a client can meet.

NoServer     (a ClusterError) nobody answers
Unreadable   (a ClusterError) what answers does not speak our protocol
TimedOut     (a ClusterError) waiting took longer than it was allowed to
JobFailed    (a SchedulerError) the job ended, and not well
"""

from __future__ import annotations

from gpu_scheduler.model.errors import (
    CallerError,
    ClusterError,
    Forbidden,
    InternalError,
    SchedulerError,
    StoreError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXIT_NO_SERVER = 3
EXIT_NOT_FOUND = 4
EXIT_REFUSED = 5
EXIT_TIMED_OUT = 124

_EXIT_CODES = {
    "not_found": EXIT_NOT_FOUND,
    "quota_exceeded": EXIT_REFUSED,
    "forbidden": EXIT_REFUSED,
    "unauthenticated": EXIT_REFUSED,
    "unavailable": ClusterError.exit_code,
    "outcome_unknown": ClusterError.exit_code,
}
_FIRST_SERVER_STATUS = 500
_ACCESS = (401, 403)


class NoServer(ClusterError):
    """No server answers."""

    code = "no_server"
    exit_code = EXIT_NO_SERVER


class Unreadable(ClusterError):
    """Something answers that is not our server, or it broke off."""

    code = "unreadable_answer"


class TimedOut(ClusterError):
    """What was waited for did not happen in time."""

    code = "timed_out"
    exit_code = EXIT_TIMED_OUT


class JobFailed(SchedulerError):
    """A job ended without success. `job` is the job as the server describes it."""

    code = "job_failed"

    def __init__(self, job: dict[str, Any]) -> None:
        """Say how it ended, and whatever the server says about why."""
        self.job = job
        how = job.get("state", "?")
        if job.get("signal"):
            how += f" by signal {job['signal']}"
        elif job.get("exit_code") is not None:
            how += f" with exit code {job['exit_code']}"
        reason = f": {job['reason']}" if job.get("reason") else ""
        super().__init__(f"{job.get('id', 'the job')} {how}{reason}")


def error_of(status: int, answer: object) -> SchedulerError:
    """The exception for an answer that is not a success."""
    body = answer if isinstance(answer, dict) else {}
    code = str(body.get("code", ""))
    message = str(body.get("error") or f"the server answered with status {status}")
    kind = _kinds().get(code)
    if kind is None:
        kind = ClusterError if status >= _FIRST_SERVER_STATUS else CallerError
    error = kind.__new__(kind)
    # Not by the class's own __init__: some of them take parts, and this is the whole sentence.
    Exception.__init__(error, message)
    error.exit_code = _EXIT_CODES.get(code, kind.exit_code)
    if status in _ACCESS:
        error.exit_code = EXIT_REFUSED
    error.code = code or kind.code
    details = body.get("details")
    error.details = details if isinstance(details, dict) else {}  # type: ignore[attr-defined]
    return error


def _kinds() -> dict[str, type[SchedulerError]]:
    found: dict[str, type[SchedulerError]] = {"unauthenticated": Forbidden}
    waiting: list[type[SchedulerError]] = [CallerError, ClusterError, StoreError, InternalError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found
