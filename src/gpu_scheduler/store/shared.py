"""Parts that many rows have in common, each written once and then named by a number.

Values come in, numbers go out, and the texts that have to be written for them. A number is good
only once its text is committed: after a commit that failed, everything must be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST = 4096


class SharedParts:
    """The numbers of the parts seen lately. Keys are equal only for values with equal parts."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        """Start without memory; `encode` makes the text of a value's part."""
        self._encode = encode
        self.forget(0)

    def forget(self, last_number: int) -> None:
        """Begin anew behind the last number that is taken."""
        self.new: list[tuple[int, str]] = []
        self._last_number = last_number
        self._by_key: dict[Any, int] = {}
        self._by_text: dict[str, int] = {}
        # A key can hold the identity of an object, which must then live as long as the key.
        self._pinned: list[Any] = []
        self._previous: Any = None
        self._previous_number = 0

    def number(self, key: Any, value: Any) -> int:
        """The number of a value's part; its text goes to `new` if it was not seen before."""
        if key == self._previous:
            return self._previous_number
        number = self._by_key.get(key)
        if number is None:
            number = self._add(key, value)
        self._previous, self._previous_number = key, number
        return number

    def trim(self) -> None:
        """Forget everything when it has become much; nothing may wait in `new`."""
        if len(self._by_key) > _MOST:
            self.forget(self._last_number)

    def _add(self, key: Any, value: Any) -> int:
        text = self._encode(value)
        number = self._by_text.get(text)
        if number is None:
            number = self._last_number = self._last_number + 1
            self._by_text[text] = number
            self.new.append((number, text))
        self._by_key[key] = number
        self._pinned.append(value)
        return number
