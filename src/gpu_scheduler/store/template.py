"""Many values that are alike but for a few fields, made fast.

A checked value comes in, copies of it come out. A copy is made as a plain twin of its class, whose
fields can be set without checks, and then becomes a value of the class itself: a fifth of the time
of a constructor. So nothing is checked again, and whoever makes copies must change only fields
that need no check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Template(Generic[T]):
    """Makes copies of a value of a class with slots."""

    __slots__ = ("copy",)

    copy: Callable[..., T]
    """One more, with these values in the fields that change."""

    def __init__(self, value: T, changing: tuple[str, ...]) -> None:
        """`changing` are the fields that every copy is given anew, in this order."""
        kind: type = type(value)
        make, fixed = _maker(kind, changing)
        self.copy = make(*(getattr(value, name) for name in fixed))


@cache
def _maker(kind: type, changing: tuple[str, ...]) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """A function from the values of the fixed fields to a function that copies; and those fields.

    It is written out field by field, as a loop over them takes four times as long.
    """
    slots: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    fixed = tuple(name for name in slots if name not in changing)
    lines = [
        f"def make({', '.join(f'fixed_{name}' for name in fixed)}):",
        f"    def copy({', '.join(changing)}):",
        "        made = Twin()",
        *(f"        made.{name} = {name}" for name in changing),
        *(f"        made.{name} = fixed_{name}" for name in fixed),
        "        made.__class__ = kind",
        "        return made",
        "    return copy",
    ]
    names: dict[str, Any] = {"Twin": type("Twin", (), {"__slots__": slots}), "kind": kind}
    # Only names of fields go into the text, as those of a dataclass do.
    exec("\n".join(lines), names)  # noqa: S102
    return names["make"], fixed
