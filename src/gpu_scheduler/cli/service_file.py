"""Service files: YAML or JSON in, the body of a request out.

Keys are those of the REST API and the short ones of job files; the check and the restart policy
have short ones of their own, and times with units.
"""

from __future__ import annotations

from typing import Any

from gpu_scheduler.cli.durations import duration
from gpu_scheduler.cli.job_file import read_job_file
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.wire.services import ReadinessRequest, RestartRequest, ServiceRequest

FIELDS = frozenset(ServiceRequest.__struct_fields__)
AUTO = "auto"
_SHELL = ["/bin/sh", "-c"]


def read_service_file(file: str) -> dict[str, Any]:
    """The one service that a file holds."""
    found = read_job_file(file, FIELDS)
    if len(found) != 1:
        raise InvalidInput(f"holds {len(found)} services; write one in each file", file=file)
    body = found[0]
    try:
        if body.get("port") == AUTO:
            body["port"] = 0
        if "readiness" in body:
            known = ReadinessRequest.__struct_fields__
            body["readiness"] = _part("readiness", body["readiness"], known)
        if isinstance(body.get("restart"), dict):
            known = RestartRequest.__struct_fields__
            body["restart"] = _part("restart", body["restart"], known)
    except InvalidRequest as error:
        raise InvalidInput(str(error), file=file) from None
    return body


def _part(name: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """A mapping inside: `interval: 5s` is interval_seconds: 5."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{name}' is written as 'name: value' lines")
    found: dict[str, Any] = {}
    for key, given in value.items():
        field = f"{key}_seconds" if f"{key}_seconds" in known else str(key)
        if field not in known:
            shown = ", ".join(field.removesuffix("_seconds") for field in known)
            raise InvalidRequest(f"there is no '{key}' in {name}; known are {shown}")
        if field.endswith("_seconds") and isinstance(given, str):
            found[field] = duration(f"{name}.{key}", plain="s")(given)
        elif field == "command" and isinstance(given, str):
            found[field] = [*_SHELL, given]
        elif field == "command":
            found[field] = [str(word) for word in given]
        else:
            found[field] = given
    return found
