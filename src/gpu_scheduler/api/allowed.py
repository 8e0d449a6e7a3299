"""Which values a place in a body may have: the type of the form in, words for people out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[([^\]]*)\]")


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
