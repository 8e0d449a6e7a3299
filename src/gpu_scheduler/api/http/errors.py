"""Errors become JSON responses with a message, a stable code and details.

The caller's mistakes are explained to the caller. The server's own are logged under the request
id, and the caller sees only that id.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from gpu_scheduler.model.errors import CallerError, InternalError, InvalidRequest, SchedulerError
from gpu_scheduler.wire.validation import describe_validation_error


class ErrorForm(Struct):
    """Every response to a failed request. `code` is stable, `error` is for users."""

    error: str
    code: str
    details: dict[str, Any] = {}


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
    """The caller is not authenticated."""

    code = "unauthenticated"


class BadToken(Unauthenticated):
    """A token is not valid; the code says why."""

    def __init__(self, message: str, *, code: str) -> None:
        """`code` is one of `TOKEN_CODES`."""
        super().__init__(message)
        self.code = code


class WrongTenant(CallerError):
    """A token is for a tenant that its user does not belong to."""

    code = "wrong_tenant"


class TooFast(CallerError):
    """The caller sends more requests than is allowed."""

    code = "too_fast"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        """`retry_after_s` is when the caller may try again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(CallerError):
    """The body is too large."""

    code = "too_large"


class TooSlow(CallerError):
    """The body did not arrive in time."""

    code = "too_slow"


class UnsupportedMedia(CallerError):
    """The content type of the body is not supported."""

    code = "unsupported_media_type"


class MethodNotAllowed(CallerError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        """`allowed` are the methods of the path."""
        super().__init__(message)
        self.allowed = allowed


class KeyReused(CallerError):
    """An idempotency key was used again for another request."""

    code = "key_reused"


class TooMany(CallerError):
    """The caller has too many streams open."""

    code = "too_many"


def error_form(error: SchedulerError) -> tuple[int, ErrorForm]:
    """Return the HTTP status and the body for an error."""
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
    """Return the body for the server's own error, without internal details."""
    return ErrorForm(
        error="internal error; the server's log has details under this request id",
        code="internal_error",
        details={"request_id": request_id} if request_id else {},
    )


def bad_body(
    problem: Exception, form: Any, body: bytes, *, index: int | None = None
) -> InvalidRequest:
    """Return an error that tells the caller how to fix a body that does not match `form`."""
    error = InvalidRequest(f"Invalid request body: {_describe(problem, form, body)}")
    error.index = index
    return error


_COMMAND = re.compile(r"got `str` - at `\$(?:\[\d+\])?\.(command|args)`")


_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The first half of a surrogate pair without the second."""


def _describe(problem: Exception, form: Any, body: bytes) -> str:
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
            return "a string in it is not valid text: it has half of a character, such as \\ud800"
        return f"it is not JSON ({text})"
    return describe_validation_error(problem, form)
