"""Requests and responses without I/O: paths, bodies, headers and errors.

The blocking and the asynchronous client both use it, so that they behave the same.
"""

from __future__ import annotations

import json
import os

from gpu_scheduler.client.captured_environment import capture
from gpu_scheduler.client.errors import Unreadable, error_of
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.model.durations import seconds_of
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from gpu_scheduler.client.fields import Word

API = "/api/v1"
ENDED = frozenset({"completed", "failed", "cancelled"})
ACTIVE = ("running", "scheduled", "preempted", "pending")
MOMENTS = ("deadline", "begin_at")
_RENAMED = {
    "gpus": "gpu_count",
    "tenant": "tenant_id",
    "time_limit_seconds": "max_runtime_seconds",
    "time": "max_runtime_seconds",
    "estimate": "estimate_seconds",
}
DURATIONS = ("time", "estimate")
"""Fields that may be text, such as 2h; a number is seconds."""
_UNTYPED = ("params", "sweep", "snapshot")
"""Fields of the REST API that the command line sends, and `JobFields` does not list."""
_MEANT = {
    **dict.fromkeys(("gpu", "num_gpus", "n_gpus", "ngpus"), "gpus"),
    **dict.fromkeys(("env", "environ", "variables"), "environment"),
    **dict.fromkeys(("cwd", "workdir", "work_dir", "directory", "chdir"), "working_directory"),
    **dict.fromkeys(("dependency", "depends_on", "after", "afterok"), "dependencies"),
    **dict.fromkeys(("timeout", "time_limit", "max_runtime", "walltime"), "time"),
    **dict.fromkeys(("cpus", "cpu", "cpus_per_task"), "cpu_cores"),
    **dict.fromkeys(("mem", "memory", "ram"), "memory_mb"),
    **dict.fromkeys(("model", "gpu_type"), "gpu_model"),
    **dict.fromkeys(("job_name", "title"), "name"),
    **dict.fromkeys(("begin", "start"), "begin_at"),
    **dict.fromkeys(("log", "stdout", "log_file"), "output"),
}
"""Keywords that people try, and the field to suggest instead."""


def job_id(job: str | int) -> str:
    """Return `job-12` and `job-12_4` for `12` and `12_4`; other ids are unchanged."""
    text = str(job)
    return f"job-{text}" if text[:1].isdecimal() else text


def job_path(job: str | int, *more: str) -> str:
    """Return the path of a job, or of a resource below it."""
    return "/".join([f"{API}/jobs/{quoted(job_id(job))}", *more])


def submission(command: Sequence[Word] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a submission: command, fields, and the caller's environment."""
    body: dict[str, Any] = {} if command is None else {"command": _words(command)}
    body |= rest_fields(fields)
    if fields.get("capture", True):
        for name, value in capture().items():
            body.setdefault(name, value)
    return body


def rest_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a submission as fields of the REST API."""
    return {
        _renamed(name): _duration(name, moment(name, _number(name, value)))
        for name, value in fields.items()
        if name not in ("capture", "command") and value is not None
    }


def submissions(jobs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the bodies of several jobs, each a mapping of fields with its `command`."""
    bodies = []
    for place, job in enumerate(jobs):
        if not hasattr(job, "keys"):
            raise InvalidRequest(
                f"jobs[{place}] is {job!r}; write a dictionary such as "
                "{'command': ['python', 'train.py'], 'gpus': 1}"
            )
        bodies.append(submission(job.get("command"), job))
    return bodies


def changes(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the body of an update."""
    return {
        _RENAMED[name] if name in DURATIONS else name: _duration(name, moment(name, value))
        for name, value in fields.items()
    }


def _renamed(name: str) -> str:
    """Return the name in the REST API; raises for an unknown keyword."""
    from gpu_scheduler.client.fields import JobFields  # noqa: PLC0415 - only for submissions

    if name not in JobFields.__annotations__ and name not in _UNTYPED:
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error

        near = get_close_matches(name, JobFields.__annotations__, n=1)
        meant = _MEANT.get(name, "".join(near))
        advice = (
            f"did you mean '{meant}'?" if meant else "docs/reference/python.md lists the fields"
        )
        raise InvalidRequest(f"a job has no field '{name}'; {advice}")
    return _RENAMED.get(name, name)


def _number(name: str, value: Any) -> Any:
    """Return the value; raises, under the caller's name of the field, if it is no number."""
    if name not in ("gpus", "time_limit_seconds"):
        return value
    if isinstance(value, str | bytes | bool) or not hasattr(value, "__float__") or value < 0:
        example = "2 or 0.5" if name == "gpus" else "3600"
        raise InvalidRequest(f"{name} is {value!r}; write a number such as {example}")
    return value


def _duration(name: str, value: Any) -> Any:
    """Return the value; text in a field with a duration as seconds."""
    if name not in DURATIONS or not isinstance(value, str):
        return value
    seconds = seconds_of(value)
    if seconds is None:
        raise InvalidRequest(f"{name} is '{value}'; write a time such as 90m, 2h or 1-12:00:00")
    return seconds


def moment(name: str, value: Any) -> Any:
    """Return the value; a `datetime` in a time field as seconds, a naive one in local time."""
    if name not in MOMENTS or not hasattr(value, "timestamp"):
        return value
    try:
        return value.timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(f"{name} is {value}; write a time after 1970") from None


def _words(command: Any) -> list[str]:
    """Return the command as strings; a single string is a command line for a shell."""
    if isinstance(command, str):
        if not command.strip():
            raise InvalidRequest("command is empty; write a command line")
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
        raise InvalidRequest(
            "command[0], the program, is an empty string; write the name of a program"
        )
    return words


def is_over(job: Mapping[str, Any]) -> bool:
    """Tell whether a job has ended."""
    return job.get("state") in ENDED


def exit_code_of(job: Mapping[str, Any]) -> int:
    """Return the exit code as in a shell: the code, 128 + signal, or 1 for a failure."""
    if job.get("signal"):
        return 128 + int(job["signal"])
    if job.get("exit_code") is not None:
        return int(job["exit_code"])
    return 0 if job.get("state") == "completed" else 1


def encoded(body: object) -> bytes | None:
    """Return a body as JSON; raises with the path of a value that JSON cannot represent."""
    if body is None:
        return None
    try:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        from gpu_scheduler.client.body_check import refusal  # noqa: PLC0415

        raise refusal(body, error) from None


def headers_for(body: object, *, once: bool = False) -> dict[str, str]:
    """Return the headers of a request; `once` adds an idempotency key."""
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if once:
        headers["Idempotency-Key"] = os.urandom(16).hex()
    return headers


def decoded(status: int, body: bytes) -> Any:
    """Return the document of a response, or raise the exception for its error code."""
    try:
        answer = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        answer = None
    if status >= 400:
        raise error_of(status, answer)
    if answer is None:
        raise Unreadable(
            "the server's response is not JSON; check that the address is that of gpu-scheduler"
        )
    return answer


def joined(values: str | Iterable[str] | None) -> str | None:
    """Return one or several values as a query parameter."""
    if values is None or isinstance(values, str):
        return values
    return ",".join(values)
