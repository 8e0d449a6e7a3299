"""Where the snapshots of the public interface are, and the public shape of Python objects."""

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.snapshots import check_json, check_text

FOLDER = Path(__file__).parent / "snapshots"
_OWN_MODULE = re.compile(
    r"\b(?:gpu_scheduler|typing|collections\.abc|pathlib|datetime)(?:\.\w+)*\."
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def check_snapshot(name: str, found: Any) -> None:
    """Compare with `snapshots/NAME`: lines of text for `.txt`, else JSON."""
    if name.endswith(".txt"):
        check_text(FOLDER / name, "\n".join(found) + "\n")
    else:
        check_json(FOLDER / name, found)


def public_shape(thing: Any) -> Any:
    """Signatures and public members, without the modules in which they are defined."""
    if inspect.isclass(thing):
        return _class_shape(thing)
    if callable(thing):
        return _signature(thing)
    return type(thing).__name__


def _class_shape(kind: type) -> dict[str, Any]:
    bases = [base.__name__ for base in kind.__mro__[1:] if base is not object]
    if issubclass(kind, Enum):
        return {"bases": bases, "values": {one.name: one.value for one in kind}}
    members = {
        name: _member(inspect.getattr_static(kind, name))
        for name in dir(kind)
        if not name.startswith("_") and not hasattr(object, name)
    }
    for owner in kind.__mro__:
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            if not name.startswith("_") and not callable(getattr(kind, name, None)):
                members[name] = f"attribute: {_annotation(annotation)}"
    if is_dataclass(kind):
        members |= {field.name: _field(field) for field in fields(kind)}
    if issubclass(kind, BaseException):
        members = {n: m for n, m in members.items() if n not in dir(BaseException)}
    shape = {"bases": bases, "members": members}
    return shape if "Protocol" in bases else shape | {"constructor": _signature(kind)}


def _member(thing: Any) -> str:
    if isinstance(thing, property):
        return f"property -> {_annotation(inspect.signature(thing.fget).return_annotation)}"
    if isinstance(thing, classmethod | staticmethod):
        return f"{type(thing).__name__} {_signature(thing.__func__)}"
    if inspect.iscoroutinefunction(thing):
        return f"async method {_signature(thing)}"
    if inspect.isroutine(thing):
        return f"method {_signature(thing)}"
    if inspect.ismemberdescriptor(thing):
        return "attribute"
    return f"attribute = {thing!r}"


def _field(field: Any) -> str:
    has_default = field.default is not MISSING
    default = f" = {field.default!r}" if has_default else ""
    if field.default_factory is not MISSING:
        default = f" = {field.default_factory()!r}"
    return f"field: {_annotation(field.type)}{default}"


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        one.replace(annotation=_Written(_annotation(one.annotation)))
        if one.annotation is not inspect.Parameter.empty
        else one
        for one in found.parameters.values()
    ]
    returned = found.return_annotation
    if returned is not inspect.Signature.empty:
        returned = _Written(_annotation(returned))
    text = str(found.replace(parameters=parameters, return_annotation=returned))
    return _OWN_MODULE.sub("", _ADDRESS.sub("", text))


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return _OWN_MODULE.sub("", annotation)
    return _OWN_MODULE.sub("", inspect.formatannotation(annotation))


class _Written:
    """An annotation that prints as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
