"""JSON text to flat records of text with their lines, and back.

Numbers keep their digits, so that 0.1 stays 0.1; NaN, infinity and repeated names are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.simulator.traces.values import unexpected

_SPACE = re.compile(r"[ \t\r\n]*")
_LISTS = {"gpu_models": "|", "device_ids": ";", "after": ";"}
_OBJECTS = ("node_labels", "labels", "mig_slices")
_NUMBERS = re.compile(r"-?\d{1,15}(\.\d{1,6})?", re.ASCII)
_TEXTS = frozenset({"id", "user", "name", "tenant", "model", "rack", "array", "labels"})


def decode(text: str) -> Any:
    """Any JSON value; raises `JSONDecodeError` or `InvalidRequest`."""
    value, end = _DECODER.raw_decode(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise json.JSONDecodeError("more text than one value", text, end)
    return value


def sections(text: str) -> Iterator[tuple[str, list[tuple[int, Any]]]]:
    """The lists of a document such as {"jobs": [...]} by name, each item with its line.

    A fault inside an item is raised as `JSONDecodeError` with its line.
    """
    place = _expect(text, 0, "{")
    if text[place : place + 1] == "}":
        return
    while True:
        if text[place : place + 1] != '"':
            raise json.JSONDecodeError("expected a name in double quotes", text, place)
        name, place = _DECODER.raw_decode(text, place)
        items, place = _items(text, _expect(text, _expect(text, place, ":"), "["))
        yield name, items
        if text[place : place + 1] == "}":
            break
        place = _expect(text, place, ",")
    if _skip(text, place + 1) != len(text):
        raise json.JSONDecodeError("more text after the end of the document", text, place + 1)


def flat_record(value: Any, columns: Mapping[str, object], what: str) -> dict[str, str]:
    """An object as text by column; lists and inner objects take the form they have in CSV."""
    if not isinstance(value, dict):
        raise unexpected(value, what, "an object such as {...}")
    record: dict[str, str] = {}
    for name, item in value.items():
        if name not in columns:
            raise InvalidRequest(
                f"unknown field {name!r} in {what}; expected fields are {', '.join(columns)}"
            )
        record[name] = _flat(name, item)
    return record


def from_flat(record: Mapping[str, str]) -> dict[str, Any]:
    """A flat record with numbers, truth values, lists and objects where JSON has them."""
    return {name: _typed(name, text) for name, text in record.items()}


def _items(text: str, place: int) -> tuple[list[tuple[int, Any]], int]:
    """The items of a list whose bracket was just passed, and the place behind the list."""
    items: list[tuple[int, Any]] = []
    line, counted = text.count("\n", 0, place) + 1, place
    if text[place : place + 1] == "]":
        return items, _skip(text, place + 1)
    while True:
        line, counted = line + text.count("\n", counted, place), place
        try:
            item, place = _DECODER.raw_decode(text, place)
        except InvalidRequest as error:
            raise json.JSONDecodeError(str(error), text, place) from error
        items.append((line, item))
        place = _skip(text, place)
        if text[place : place + 1] == "]":
            return items, _skip(text, place + 1)
        place = _expect(text, place, ",")


def _expect(text: str, place: int, sign: str) -> int:
    place = _skip(text, place)
    if text[place : place + 1] != sign:
        raise json.JSONDecodeError(f"expected {sign!r}", text, place)
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _flat(name: str, item: Any) -> str:
    if isinstance(item, str):
        return item
    if item is None:
        return ""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, list) and name in _LISTS:
        return _LISTS[name].join(_flat(name, part) for part in item)
    if isinstance(item, dict) and name in _OBJECTS:
        return ";".join(f"{key}={_flat(name, part)}" for key, part in item.items())
    raise unexpected(item, name, "a single value")


def _typed(name: str, text: str) -> Any:
    if name in _OBJECTS:
        return dict(part.split("=", 1) for part in text.split(";"))
    if name in _LISTS:
        parts = text.split(_LISTS[name])
        return [int(part) for part in parts] if name == "device_ids" else parts
    if name not in _TEXTS and text in {"true", "false"}:
        return text == "true"
    if name not in _TEXTS and _NUMBERS.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _refuse_constant(name: str) -> Any:
    raise unexpected(name, "a number", "digits")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"field {twice!r} appears twice in one object; expected it once")
    return found


# Numbers stay text: each column reads its own, and 0.1 is never rounded on the way.
_DECODER = json.JSONDecoder(
    parse_float=str,
    parse_int=str,
    parse_constant=_refuse_constant,
    object_pairs_hook=_unique,
)
