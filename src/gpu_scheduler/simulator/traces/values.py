"""Text to numbers and lists, with one form of complaint: what was found, what was expected.

Everything here raises `InvalidRequest`; whoever knows the file and the line adds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from gpu_scheduler.model.errors import InvalidRequest

LARGEST = 10**12
"""Larger than any second, MiB or count that can be meant."""
LONGEST_TEXT = 4_000
THOUSAND = 1_000
_PLAIN_DIGITS = len(str(LARGEST)) - 1
_NUMBER = re.compile(r"\+?\d+(\.\d*)?([eE][+-]?\d{1,3})?|\+?\.\d+", re.ASCII)
_TRUE = frozenset({"true", "yes", "1"})
_FALSE = frozenset({"false", "no", "0"})


def whole_number(text: str, name: str) -> int:
    """A whole number of 0 or more; `8.0`, as some programs write it, is one too."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text)
    expected = "a whole number of 0 or more"
    number = _decimal(text, name, expected)
    if number != number.to_integral_value():
        raise unexpected(text, name, expected)
    return int(number)


def thousandths(text: str, name: str) -> int:
    """A number of 0 or more times 1000, rounded: seconds to milliseconds, cores to milli-cores."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text) * THOUSAND
    number = _decimal(text, name, "a number of 0 or more")
    return int((number * THOUSAND).to_integral_value())


def exact_thousandths(text: str, name: str) -> int:
    """A number of 0 or more with at most three decimals, times 1000."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text) * THOUSAND
    expected = "a number of 0 or more such as 2, 0.5 or 1.5"
    scaled = _decimal(text, name, expected) * THOUSAND
    if scaled != scaled.to_integral_value():
        raise unexpected(text, name, expected)
    return int(scaled)


def yes_or_no(text: str, name: str) -> bool:
    """A truth value in one of the usual spellings."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise unexpected(text, name, "true or false")


def choices(text: str, name: str) -> tuple[str, ...]:
    """Alternatives: `A|B`."""
    found = tuple(part.strip() for part in text.split("|"))
    if not all(found):
        raise unexpected(text, name, "names such as A100 or A100|H100")
    return found


def pairs(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Labels: `zone=a;disk=ssd`."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals) or key in found:
            raise unexpected(text, name, "different labels such as zone=a;disk=ssd")
        found[key] = value
    return tuple(sorted(found.items()))


def one_of(text: str, name: str, allowed: Iterable[str]) -> str:
    """One word of a list."""
    words = list(allowed)
    if text not in words:
        raise unexpected(text, name, "one of " + ", ".join(words))
    return text


def as_decimal(thousandths_: int) -> str:
    """The shortest decimal for a number of thousandths: 1500 gives 1.5."""
    whole, rest = divmod(thousandths_, THOUSAND)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def unexpected(text: object, name: str, expected: str) -> InvalidRequest:
    """The complaint about one value. Written so that control characters stay harmless."""
    shown = repr(text)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return InvalidRequest(f"{name} is {shown}; expected {expected}")


def _decimal(text: str, name: str, expected: str) -> Decimal:
    text = text.strip()
    if len(text) > LONGEST_TEXT or not _NUMBER.fullmatch(text):
        raise unexpected(text, name, expected)
    number = Decimal(text)
    if number >= LARGEST:
        raise unexpected(text, name, f"{expected}, below {LARGEST:.0e}".replace("+", ""))
    return number
