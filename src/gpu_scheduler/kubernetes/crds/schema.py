"""From a typed value to the structural OpenAPI schema that Kubernetes stores and enforces.

Comes in: a msgspec struct whose fields carry descriptions and limits. Goes out: a schema without
references. A class may have `rules`: CEL expressions that Kubernetes evaluates at each write. Each
default number, boolean or text is part of the schema: we leave it out when we write, the server
fills it in, and `kubectl get` shows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A CEL expression that must be true, and the sentence that a user sees if it is not."""

    expression: str
    message: str
    field: str = ""
    """The path of the field that the message is about, such as `.fraction`."""

    def schema(self) -> Schema:
        """As Kubernetes writes it."""
        found = {"rule": self.expression, "message": self.message}
        return found | {"fieldPath": self.field} if self.field else found


def schema_of(type_: type) -> Schema:
    """The schema of a struct."""
    return _schema(inspect.type_info(type_))


def _schema(info: inspect.Type) -> Schema:  # noqa: PLR0911 - one line for each kind of type
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return {**_schema(inner), **(extra or {})}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_limits(info)}
        case inspect.FloatType():
            return {"type": "number", **_limits(info)}
        case inspect.StrType():
            return {"type": "string", **_limits(info)}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _schema(item), **_limits(info)}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value), **_limits(info)}
        case inspect.UnionType(types=types):
            return _union(types)
        case inspect.StructType():
            return _struct(info)
    raise TypeError(f"{info} has no form in a Kubernetes schema")


def _union(types: tuple[inspect.Type, ...]) -> Schema:
    """A field that may be missing, or a Kubernetes quantity (a number or a text)."""
    given = [one for one in types if not isinstance(one, inspect.NoneType)]
    if len(given) == 1:
        return _schema(given[0])
    if {type(one) for one in given} == {inspect.IntType, inspect.StrType}:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    raise TypeError(f"a union of {given} has no form in a Kubernetes schema")


def _struct(info: inspect.StructType) -> Schema:
    properties = {field.encode_name: _field(field) for field in info.fields}
    required = [field.encode_name for field in info.fields if field.required]
    rules: tuple[Rule, ...] = getattr(info.cls, "rules", ())
    found: Schema = {"type": "object", "description": description_of(info.cls)}
    found["properties"] = properties
    if required:
        found["required"] = required
    if rules:
        found["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return found


def _field(field: inspect.Field) -> Schema:
    found = _schema(field.type)
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if isinstance(default, str | int | float) and default != "":
        found["default"] = default
    return found


def description_of(cls: type) -> str:
    """The docstring of a class, as one paragraph."""
    return " ".join((cls.__doc__ or "").split())


_LIMITS: Mapping[type, Mapping[str, str]] = {
    inspect.IntType: {"ge": "minimum", "le": "maximum"},
    inspect.FloatType: {"ge": "minimum", "le": "maximum"},
    inspect.StrType: {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    inspect.VarTupleType: {"min_length": "minItems", "max_length": "maxItems"},
    inspect.DictType: {"min_length": "minProperties", "max_length": "maxProperties"},
}


def _limits(info: inspect.Type) -> Schema:
    given = _LIMITS[type(info)]
    values = {name: getattr(info, attribute) for attribute, name in given.items()}
    return {name: value for name, value in values.items() if value is not None}


def documented(description: str, **limits: Any) -> msgspec.Meta:
    """What `kubectl explain` says of a field, and its limits.

    Limits of msgspec have its names (`ge`, `max_length`); other names are keywords of the schema.
    """
    ours = {"ge", "le", "min_length", "max_length", "pattern"}
    extra = {name: value for name, value in limits.items() if name not in ours}
    return msgspec.Meta(
        description=description,
        extra_json_schema=extra or None,
        **{name: value for name, value in limits.items() if name in ours},
    )


def keyed_by(*keys: str) -> Schema:
    """A list with these fields as the keys of its entries, so that several writers can share it."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def a_set() -> Schema:
    """A list in which nothing comes twice."""
    return {"x-kubernetes-list-type": "set"}
