"""Finds the value of a request body that JSON cannot represent, for the error message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.client.http1 import encode_utf8
from gpu_scheduler.model.errors import InvalidRequest

MAX_DEPTH = 100
_SHOWN = 80


def refusal(body: object, error: Exception) -> InvalidRequest:
    """Return the error for the first invalid value; `error` is that of the JSON encoder."""
    for place, value in _values(body, "", MAX_DEPTH):
        if problem := _problem(place, value):
            return InvalidRequest(problem)
    return InvalidRequest(f"the request cannot be encoded as JSON: {error}")


def _values(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path, such as `command[1]` or `environment.PATH`."""
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield f"a name in {place or 'the request'}", key
            yield from _values(inner, f"{place}.{key}" if place else str(key), depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for number, inner in enumerate(value):
            yield from _values(inner, f"{place}[{number}]", depth - 1)
    else:
        yield place or "the request", value


def _problem(place: str, value: object) -> str:
    if isinstance(value, str):
        try:
            encode_utf8(value)
        except InvalidRequest as error:
            return f"{_plain(place)}: {error}"
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{_plain(place)} is {value}; write a number"
    if value is None or isinstance(value, bool | int | float):
        return ""
    if isinstance(value, dict | list | tuple):
        return f"{_plain(place)} contains itself, or is nested too deeply"
    shown = repr(value)[:_SHOWN]
    return (
        f"{_plain(place)} is {shown}, of type {type(value).__name__}, which JSON cannot represent; "
        "write a string, a number, True, False, a list or a dict"
    )


def _plain(place: str) -> str:
    return place.encode("ascii", "backslashreplace").decode("ascii")
