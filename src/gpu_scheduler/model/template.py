"""Many values that are alike but for a few fields, made fast.

A checked value comes in, copies of it come out. Setting slots from C takes a third of the time of
a constructor; so nothing is checked again, and whoever makes copies must change only fields that
need no check.
"""

from __future__ import annotations

from itertools import repeat
from operator import call
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Template(Generic[T]):
    """Makes copies of a value of a class with slots."""

    __slots__ = ("_changing", "_kind", "_setters", "_values")

    def __init__(self, value: T, changing: tuple[str, ...]) -> None:
        """`changing` are the fields that every copy is given anew."""
        self._kind = type(value)
        slots: tuple[str, ...] = self._kind.__slots__  # type: ignore[attr-defined]
        fixed = [name for name in slots if name not in changing]
        self._setters = tuple(getattr(self._kind, name).__set__ for name in fixed)
        self._values = tuple(getattr(value, name) for name in fixed)
        self._changing = tuple(getattr(self._kind, name).__set__ for name in changing)

    def copy(self, *values: Any) -> T:
        """One more, with these values in the fields that change."""
        made = object.__new__(self._kind)
        for _ in map(call, self._setters, repeat(made), self._values):
            pass
        for _ in map(call, self._changing, repeat(made), values):
            pass
        return made
