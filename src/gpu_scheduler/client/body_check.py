"""Which value of a body no request can carry, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.client.http1 import as_utf8
from gpu_scheduler.model.errors import InvalidRequest

DEEPEST = 100
_SHOWN = 80


def refusal(body: object, error: Exception) -> InvalidRequest:
    """The refusal of the first value that is at fault; the error is what JSON said of it all."""
    for place, value in _values(body, "", DEEPEST):
        if why := _fault(place, value):
            return InvalidRequest(why)
    return InvalidRequest(f"the request cannot be written as JSON: {error}")


def _values(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Everything in a body with its place, such as `command[1]` or `environment.PATH`."""
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield f"a name in {place or 'the request'}", key
            yield from _values(inner, f"{place}.{key}" if place else str(key), depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for number, inner in enumerate(value):
            yield from _values(inner, f"{place}[{number}]", depth - 1)
    else:
        yield place or "the request", value


def _fault(place: str, value: object) -> str:
    if isinstance(value, str):
        try:
            as_utf8(value)
        except InvalidRequest as error:
            return f"{_plain(place)}: {error}"
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{_plain(place)} is {value}; write a number"
    if value is None or isinstance(value, bool | int | float):
        return ""
    if isinstance(value, dict | list | tuple):
        return f"{_plain(place)} holds itself, or too many things in one another"
    shown = repr(value)[:_SHOWN]
    return (
        f"{_plain(place)} is {shown}, of type {type(value).__name__}, which JSON cannot say; write "
        "a text, a number, True, False, a list or a dict"
    )


def _plain(place: str) -> str:
    return place.encode("ascii", "backslashreplace").decode("ascii")
