"""Readable messages for msgspec's validation errors.

An error and the type that was decoded come in; a sentence with the field, the value found and the
allowed values goes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[([^\]]*)\]")
_AT = re.compile(r" - at `(.*)`$")
_INVALID_CHOICE = re.compile(r"[Ii]nvalid enum value (.*)")
_KINDS = re.compile(r"`(\w+(?: \| \w+)*)`")
_TYPE_NAMES = {
    "array": "a list",
    "object": "an object",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")


def describe_validation_error(error: msgspec.ValidationError, schema: Any) -> str:
    """Return the field, what is wrong with it, and what is allowed."""
    text = str(error)
    path = _AT.search(text)
    message = _AT.sub("", text)
    if path and (invalid := _INVALID_CHOICE.fullmatch(message)):
        message = f"{invalid[1]} is not one of {', '.join(allowed_values(schema, path[1]))}"
    elif message.startswith("Expected"):
        message = _KINDS.sub(_type_names, message)
    elif unknown := _UNKNOWN_FIELD.fullmatch(message):
        message += _suggestion(unknown[1], schema, path[1] if path else "$")
    message = message[:1].lower() + message[1:]
    if path and path[1] != "$":
        return f"{path[1].removeprefix('$').removeprefix('.')}: {message}"
    return message


def _suggestion(name: str, schema: Any, path: str) -> str:
    """Return the nearest field of the object at the path, as a question."""
    kinds = [inspect.type_info(schema)]
    for step in _STEP.finditer(path):
        kinds = [inner for kind in kinds for inner in _inside(kind, step[1])]
    fields = [field.encode_name for kind in kinds for field in _fields(kind)]
    near = get_close_matches(name, fields, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _fields(kind: inspect.Type) -> Iterator[inspect.Field]:
    match kind:
        case inspect.UnionType(types):
            for each in types:
                yield from _fields(each)
        case inspect.StructType():
            yield from kind.fields


def _type_names(kinds: re.Match[str]) -> str:
    return " or ".join(_TYPE_NAMES.get(kind, kind) for kind in kinds[1].split(" | "))


def allowed_values(schema: Any, path: str) -> list[str]:
    """Return the allowed values at a path such as `$.runner` or `$[2].members[0].topology`."""
    kinds = [inspect.type_info(schema)]
    for step in _STEP.finditer(path):
        kinds = [inner for kind in kinds for inner in _inside(kind, step[1])]
    return sorted({value for kind in kinds for value in _values(kind)})


def _inside(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """Yield the types one step further: a field by name, or the items of a list or mapping."""
    match kind:
        case inspect.UnionType(types):
            for each in types:
                yield from _inside(each, name)
        case inspect.StructType():
            yield from (field.type for field in kind.fields if field.encode_name == name)
        case inspect.ListType():
            yield kind.item_type
        case inspect.DictType():
            yield kind.value_type


def _values(kind: inspect.Type) -> Iterator[str]:
    match kind:
        case inspect.UnionType(types):
            for each in types:
                yield from _values(each)
        case inspect.EnumType(cls):
            yield from (str(member.value) for member in cls)
        case inspect.LiteralType(values):
            yield from (str(value) for value in values)
