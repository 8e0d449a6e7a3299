"""Exceptions of the client: those of the server, rebuilt from its responses, and its own ones.

SchedulerError
|- ClusterError
|  |- NoServer     no server answers
|  |- Unreadable   the response is not valid, or the connection was lost
|  `- TimedOut     the wait took longer than its limit
`- JobFailed       a job ended without success
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
    """The response is not that of a gpu-scheduler server, or the connection was lost."""

    code = "unreadable_answer"


class TimedOut(ClusterError):
    """The wait took longer than its limit."""

    code = "timed_out"
    exit_code = EXIT_TIMED_OUT


class JobFailed(SchedulerError):
    """A job ended without success. `job` is the job as the server describes it."""

    code = "job_failed"

    def __init__(self, job: dict[str, Any]) -> None:
        """Describe the end of the job, with the server's reason."""
        self.job = job
        how = job.get("state", "?")
        if job.get("signal"):
            how += f" by signal {job['signal']}"
        elif job.get("exit_code") is not None:
            how += f" with exit code {job['exit_code']}"
        reason = f": {job['reason']}" if job.get("reason") else ""
        super().__init__(f"{job.get('id', 'the job')} {how}{reason}")


def error_of(status: int, answer: object) -> SchedulerError:
    """Return the exception for a failed request."""
    body = answer if isinstance(answer, dict) else {}
    code = str(body.get("code", ""))
    message = str(body.get("error") or f"the server answered with status {status}")
    kind = _kinds().get(code)
    if kind is None:
        kind = ClusterError if status >= _FIRST_SERVER_STATUS else CallerError
    error = kind.__new__(kind)
    # Without the __init__ of the class: some of them build the message from parts.
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
