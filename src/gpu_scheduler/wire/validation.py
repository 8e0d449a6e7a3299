"""What does not fit a form, in words for people: what was refused and the form's type in, the
place, what is there and what may be there out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[([^\]]*)\]")
_AT = re.compile(r" - at `(.*)`$")
_NO_CHOICE = re.compile(r"[Ii]nvalid enum value (.*)")
_KINDS = re.compile(r"`(\w+(?: \| \w+)*)`")
_WORDS = {
    "array": "a list",
    "object": "an object",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def misfit(problem: msgspec.ValidationError, form: Any) -> str:
    """Where a value does not fit its form, and what would."""
    text = str(problem)
    where = _AT.search(text)
    told = _AT.sub("", text)
    if where and (wrong := _NO_CHOICE.fullmatch(told)):
        told = f"{wrong[1]} is none of {', '.join(allowed_values(form, where[1]))}"
    elif told.startswith("Expected"):
        told = _KINDS.sub(_in_words, told)
    told = told[:1].lower() + told[1:]
    if where and where[1] != "$":
        return f"{where[1].removeprefix('$').removeprefix('.')}: {told}"
    return told


def _in_words(kinds: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds[1].split(" | "))


def allowed_values(form: Any, path: str) -> list[str]:
    """What may stand at a path such as `$.runner` or `$[2].members[0].topology`."""
    found = [inspect.type_info(form)]
    for step in _STEP.finditer(path):
        found = [inner for kind in found for inner in _inside(kind, step[1])]
    return sorted({value for kind in found for value in _values(kind)})


def _inside(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """The types one step further: a field by its name, or what a list or mapping holds."""
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
