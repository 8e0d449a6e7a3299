"""Errors become answers: every one is JSON with a sentence, a stable code and details.

What a caller did is told to the caller; what we did goes to the log, under the request's id.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gpu_scheduler.model.errors import CallerError, InternalError, InvalidRequest, SchedulerError
from gpu_scheduler.wire.answers import ErrorForm
from gpu_scheduler.wire.validation import misfit

TOKEN_CODES = (
    *("token_unknown", "token_unreadable", "token_invalid", "token_expired", "token_revoked"),
    *("token_not_yet_valid", "token_wrong_issuer", "token_wrong_audience", "token_without_user"),
)
STATUS = {
    "invalid_request": 400,
    "invalid_input": 400,
    "caller_error": 400,
    "unauthenticated": 401,
    **dict.fromkeys(TOKEN_CODES, 401),
    "wrong_tenant": 403,
    "forbidden": 403,
    "quota_exceeded": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "already_exists": 409,
    "wrong_state": 409,
    "no_common_protocol": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "never_fits": 422,
    "key_reused": 422,
    "too_many": 429,
    "too_fast": 429,
    "too_slow": 408,
    "headers_too_large": 431,
    "internal_error": 500,
    "error": 500,
    "queue_full": 503,
    "too_many_jobs": 429,
    "cluster_error": 503,
    "not_leader": 503,
    "not_vouched": 403,
    "unavailable": 503,
    "outcome_unknown": 503,
}
RETRY_AFTER = {503: "5", 429: "1"}


class Unauthenticated(CallerError):
    """Nobody knows who is calling."""

    code = "unauthenticated"


class BadToken(Unauthenticated):
    """A token was shown that is not believed; the code says why not."""

    def __init__(self, message: str, *, code: str) -> None:
        """`code` is one of `TOKEN_CODES`."""
        super().__init__(message)
        self.code = code


class WrongTenant(CallerError):
    """A token is for a tenant that its user has nothing to do with."""

    code = "wrong_tenant"


class TooFast(CallerError):
    """The caller sends more requests than is allowed."""

    code = "too_fast"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        """`retry_after_s` is when there is room again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(CallerError):
    """More was sent than is taken at once."""

    code = "too_large"


class TooSlow(CallerError):
    """The body did not arrive in time."""

    code = "too_slow"


class UnsupportedMedia(CallerError):
    """The body is of a kind that is not read here."""

    code = "unsupported_media_type"


class MethodNotAllowed(CallerError):
    """The path exists, and cannot be used in this way."""

    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        """`allowed` is what can be done with the path."""
        super().__init__(message)
        self.allowed = allowed


class KeyReused(CallerError):
    """An idempotency key came again with another request."""

    code = "key_reused"


class TooMany(CallerError):
    """The caller has more open at once than is allowed."""

    code = "too_many"


def error_form(error: SchedulerError) -> tuple[int, ErrorForm]:
    """The status and the body for an error that was raised on purpose."""
    status = STATUS.get(error.code, 500 if isinstance(error, InternalError) else 400)
    details: dict[str, Any] = dict(error.data)
    if error.index is not None:
        details["index"] = error.index
    if isinstance(error, MethodNotAllowed):
        details["allowed"] = list(error.allowed)
    if status == 500:
        return status, internal_error_form("")
    return status, ErrorForm(error=str(error), code=error.code, details=details)


def internal_error_form(request_id: str) -> ErrorForm:
    """What is said when the server made a mistake: nothing about its inside."""
    return ErrorForm(
        error="the scheduler made a mistake; its log says more under this request's id",
        code="internal_error",
        details={"request_id": request_id} if request_id else {},
    )


def bad_body(
    problem: Exception, form: Any, body: bytes, *, index: int | None = None
) -> InvalidRequest:
    """A body that cannot be read as this form, said so that its writer can mend it."""
    error = InvalidRequest(f"Invalid request body: {_told(problem, form, body)}")
    error.index = index
    return error


_COMMAND = re.compile(r"got `str` - at `\$(?:\[\d+\])?\.(command|args)`")


_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The first half of a pair that stands for one character, without the second."""


def _told(problem: Exception, form: Any, body: bytes) -> str:
    if isinstance(problem, UnicodeDecodeError):
        return "it is not UTF-8"
    text = str(problem)
    found = _COMMAND.search(text)
    if found:
        return (
            f"{found[1]} must be a list of strings, not one string; "
            'write for example ["python", "train.py"]'
        )
    if not isinstance(problem, msgspec.ValidationError):
        if "surrogate" in text or _HALF_CHARACTER.search(body):
            return "a string in it is no valid text: it has half of a character, such as \\ud800"
        return f"it is not JSON ({text})"
    return misfit(problem, form)
