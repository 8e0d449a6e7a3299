"""What is sent and what comes back, without sending it: paths, bodies and errors.

Both clients use these, so that they cannot differ.
"""

from __future__ import annotations

import json
import os

from gpu_scheduler.client.environment import capture
from gpu_scheduler.client.errors import Unreadable, error_of
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from gpu_scheduler.client.fields import Word

API = "/api/v1"
ENDED = frozenset({"completed", "failed", "cancelled"})
ACTIVE = ("running", "scheduled", "preempted", "pending")
TOO_FAST = 429
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 0.0)
"""How long to wait before each repetition of a request that came too fast."""
UNAVAILABLE = 503
FOLLOW_S = 20.0
"""So long a leader is looked for, and a little longer than a failover takes."""
FOLLOW_PAUSE_S = 0.25
_NOT_DONE = b'"not_leader"'
_NOT_KNOWN = b'"outcome_unknown"'
_NOT_HERE = (b'"unavailable"', b'"cluster_error"')
MOMENTS = ("deadline", "begin_at")
_RENAMED = {
    "gpus": "gpu_count",
    "tenant": "tenant_id",
    "time_limit_seconds": "max_runtime_seconds",
}


def job_id(job: str | int) -> str:
    """`12` and `12_4` become `job-12` and `job-12_4`; what has a name keeps it."""
    text = str(job)
    return f"job-{text}" if text[:1].isdecimal() else text


def job_path(job: str | int, *more: str) -> str:
    """The path of a job, or of something of it."""
    return "/".join([f"{API}/jobs/{quoted(job_id(job))}", *more])


def submission(command: Sequence[Word] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a submission: the command, the fields, and the surroundings of the caller."""
    body: dict[str, Any] = {} if command is None else {"command": _words(command)}
    for name, value in fields.items():
        if name not in ("capture", "command") and value is not None:
            body[_RENAMED.get(name, name)] = moment(name, value)
    if fields.get("capture", True):
        for name, value in capture().items():
            body.setdefault(name, value)
    return body


def changes(fields: Mapping[str, object]) -> dict[str, object]:
    """The body of an update."""
    return {name: moment(name, value) for name, value in fields.items()}


def moment(name: str, value: Any) -> Any:
    """The value; where it is a time, a `datetime` as seconds, a naive one by the own clock."""
    if name not in MOMENTS or not hasattr(value, "timestamp"):
        return value
    try:
        return value.timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(f"{name} is {value}; write a time from 1970 on") from None


def _words(command: Any) -> list[str]:
    """The command as strings; one string is a line for a shell. Nothing is turned into text."""
    if isinstance(command, str):
        if not command.strip():
            raise InvalidRequest("command is an empty line; write what a shell should run")
        return ["/bin/sh", "-c", command]
    if isinstance(command, bytes) or not hasattr(command, "__iter__"):
        raise InvalidRequest(f"command is {command!r}; write a list of strings, or one string")
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise InvalidRequest(
                f"command[{place}] is {word!r}, of type {type(word).__name__}; write a string"
            )
    if words and not words[0]:
        raise InvalidRequest("command[0], the program, is an empty string; name a program")
    return words


def is_over(job: Mapping[str, Any]) -> bool:
    """Whether nothing more will happen to a job by itself."""
    return job.get("state") in ENDED


def exit_code_of(job: Mapping[str, Any]) -> int:
    """As a shell says it: the code, 128 + signal, or 1 when a job ended badly without either."""
    if job.get("signal"):
        return 128 + int(job["signal"])
    if job.get("exit_code") is not None:
        return int(job["exit_code"])
    return 0 if job.get("state") == "completed" else 1


def encoded(body: object) -> bytes | None:
    """JSON bytes of a body; a value that JSON cannot say is refused by its place."""
    if body is None:
        return None
    try:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        from gpu_scheduler.client.body_check import refusal  # noqa: PLC0415

        raise refusal(body, error) from None


def headers_for(body: object, *, once: bool = False) -> dict[str, str]:
    """The headers of a request; `once` makes a repetition harmless."""
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if once:
        headers["Idempotency-Key"] = os.urandom(16).hex()
    return headers


def decoded(status: int, body: bytes) -> Any:
    """The answer's document; an error is raised as the exception that it names."""
    try:
        answer = json.loads(body) if body else {}
    except ValueError:
        answer = None
    if status >= 400:
        raise error_of(status, answer)
    if answer is None:
        raise Unreadable("the server's answer is not JSON; is that really gpu-scheduler?")
    return answer


def is_too_fast(status: int, body: bytes) -> bool:
    """Whether the server wants the same request again a little later."""
    return status == TOO_FAST and b'"too_fast"' in body


def is_elsewhere(status: int, body: bytes, *, has_others: bool, is_safe: bool) -> bool:
    """Whether to ask again, as the server does not lead (any more), or cannot work now.

    One that is alone will lead soon, or know who does; if there are others, one of them may be in a
    better state. What may have been done is sent again only if that `is_safe`.
    """
    if status != UNAVAILABLE:
        return False
    if _NOT_DONE in body or (is_safe and _NOT_KNOWN in body):
        return True
    return has_others and any(code in body for code in _NOT_HERE)


def joined(values: str | Iterable[str] | None) -> str | None:
    """One word or several, as a query says them."""
    if values is None or isinstance(values, str):
        return values
    return ",".join(values)
