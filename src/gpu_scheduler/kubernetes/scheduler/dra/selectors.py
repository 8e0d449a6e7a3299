"""Device selectors: a documented subset of the CEL expressions of ResourceClaims and DeviceClasses.

An expression goes in as text; what comes out tells whether a device is selected. What is outside
of the subset is rejected while parsing (`InvalidRequest`), never guessed. As in CEL, an attribute
that a device does not have is an error, which `||` and `&&` absorb if the other side decides; a
device for which the whole expression is an error is not selected.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn

from gpu_scheduler.kubernetes.dynamic_resources import DRIVER
from gpu_scheduler.kubernetes.quantities import InvalidQuantity, parse_quantity
from gpu_scheduler.model.errors import InvalidRequest

MOST_CHARACTERS = 10_240
"""What Kubernetes accepts."""
LONGEST_NUMBER = 19
"""Digits of the largest integer of CEL."""
DEEPEST = 50
"""So many operators and parentheses may be nested."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?![\w.]))|(?P<string>\"[^\"\\\n]*\"|'[^'\\\n]*')"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<operator>&&|\|\||[=!<>]=|[-!<>().,\[\]]))"
)
Value = Any
"""A string, integer, truth value, Decimal (a quantity), list, or mapping by name."""
Evaluate = Callable[[Mapping[str, Value]], Value]


class _NoValue(Exception):
    """CEL's runtime error: a missing key, or values that do not go together."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A parsed part of an expression; `key` is the last name of a field access, with its target."""

    evaluate: Evaluate
    target: Evaluate | None = None
    key: str = ""


class Selector:
    """One parsed expression."""

    def __init__(self, text: str) -> None:
        """Raises `InvalidRequest` for what is no CEL of the subset."""
        self.text = text
        self._evaluate = _Parser(text).parse()

    def selects(self, device: Mapping[str, Value]) -> bool:
        """Tell whether a device, as `device_value` writes it, is selected."""
        try:
            return self._evaluate(device) is True
        except _NoValue:
            return False
        except RecursionError:
            raise InvalidRequest(
                f"the selector `{self.text}` is nested too deeply; use fewer calls in a row"
            ) from None


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """The selector of an expression."""
    return Selector(text)


def device_value(device: Mapping[str, Any]) -> dict[str, Value]:
    """A device of a ResourceSlice of our driver as CEL sees it."""
    attributes: dict[str, dict[str, Value]] = {}
    for name, one in device.get("attributes", {}).items():
        domain, _, short = name.rpartition("/")
        (value,) = one.values()
        attributes.setdefault(domain or DRIVER, {})[short] = value
    capacity: dict[str, dict[str, Value]] = {}
    for name, one in device.get("capacity", {}).items():
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain or DRIVER, {})[short] = parse_quantity(one["value"])
    return {
        "driver": DRIVER,
        "attributes": _Domains(attributes),
        "capacity": _Domains(capacity),
    }


class _Domains(dict[str, dict[str, Value]]):
    """Attributes by domain; a domain that the device does not have is empty."""

    def __missing__(self, _: str) -> dict[str, Value]:
        return {}


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._place = 0
        self._depth = 0
        if len(text) > MOST_CHARACTERS:
            self._fail("it is too long")
        place = 0
        stripped = text.rstrip()
        while place < len(stripped):
            found = _TOKEN.match(stripped, place)
            if found is None:
                self._fail(f"it has '{stripped[place:].lstrip()[:10]}'")
            self._tokens.append((str(found.lastgroup), str(found[str(found.lastgroup)])))
            place = found.end()

    def parse(self) -> Evaluate:
        """The whole expression."""
        parsed = self._either().evaluate
        if self._place < len(self._tokens):
            self._fail(f"'{self._tokens[self._place][1]}' is not expected there")
        return parsed

    def _fail(self, why: str) -> NoReturn:
        raise InvalidRequest(
            f"the selector `{self._text}` is outside of the CEL that this scheduler knows: {why}"
        )

    # --- tokens

    def _peek(self) -> str:
        """The next token if it is an operator or a name."""
        if self._place == len(self._tokens):
            return ""
        kind, text = self._tokens[self._place]
        return text if kind in ("operator", "name") else ""

    def _take(self, *expected: str) -> str:
        """The next token, if it is one of the expected operators or names; else nothing."""
        found = self._peek()
        if found not in expected:
            return ""
        self._place += 1
        return found

    def _need(self, expected: str) -> None:
        if not self._take(expected):
            self._fail(f"'{expected}' is missing")

    def _of_kind(self, kind: str) -> str | None:
        if self._place < len(self._tokens) and self._tokens[self._place][0] == kind:
            self._place += 1
            return self._tokens[self._place - 1][1]
        return None

    # --- grammar, the loosest binding first

    def _either(self) -> _Part:
        self._depth += 1
        if self._depth > DEEPEST:
            self._fail("it is nested too deeply")
        found = self._both()
        sides = [found.evaluate]
        while self._take("||"):
            sides.append(self._both().evaluate)
        self._depth -= 1
        return found if len(sides) == 1 else _Part(_absorbing(sides, decides=True))

    def _both(self) -> _Part:
        found = self._relation()
        sides = [found.evaluate]
        while self._take("&&"):
            sides.append(self._relation().evaluate)
        return found if len(sides) == 1 else _Part(_absorbing(sides, decides=False))

    def _relation(self) -> _Part:
        left = self._negation()
        operator = self._take("==", "!=", "<", "<=", ">", ">=", "in")
        if not operator:
            return left
        return _Part(_comparison(operator, left.evaluate, self._negation().evaluate))

    def _negation(self) -> _Part:
        negations = 0
        while self._take("!"):
            negations += 1
        inner = self._access()
        # Two negations give the value back, but only that of a truth value.
        for _ in range(negations if negations < 3 else 2 - negations % 2):
            inner = _Part(_negated(inner.evaluate))
        return inner

    def _access(self) -> _Part:
        found = self._primary()
        while True:
            if self._take("["):
                index = self._either().evaluate
                self._need("]")
                found = _Part(_indexed(found.evaluate, index))
            elif self._take("."):
                name = self._of_kind("name")
                if name is None:
                    self._fail("a name is missing after '.'")
                if self._take("("):
                    found = _Part(self._method(found.evaluate, name))
                else:
                    field = _constant(name)
                    found = _Part(_indexed(found.evaluate, field), found.evaluate, name)
            else:
                return found

    def _method(self, target: Evaluate, name: str) -> Evaluate:
        if name not in _METHODS:
            self._fail(f"it calls {name}()")
        count, function = _METHODS[name]
        arguments: list[Evaluate] = []
        while not self._take(")"):
            if arguments:
                self._need(",")
            arguments.append(self._either().evaluate)
        if len(arguments) != count:
            self._fail(f"{name}() takes {count} arguments")
        return _call(function, target, *arguments)

    def _primary(self) -> _Part:
        text = self._of_kind("string")
        if text is not None:
            return _Part(_constant(text[1:-1]))
        sign = -1 if self._take("-") else 1
        number = self._of_kind("number")
        if number is not None:
            if len(number) > LONGEST_NUMBER:
                self._fail(f"{number[:10]}… is too large a number")
            return _Part(_constant(sign * int(number)))
        word = self._take("true", "false", "device", "quantity", "has", "(", "[")
        if sign < 0 or not word:
            found = self._tokens[self._place][1] if self._place < len(self._tokens) else "its end"
            self._fail(f"{found} is not expected there")
        match word:
            case "true" | "false":
                return _Part(_constant(word == "true"))
            case "device":
                return _Part(lambda device: device)
            case "(":
                inner = self._either()
                self._need(")")
                return _Part(inner.evaluate)
            case "[":
                return self._list()
            case "quantity":
                return self._quantity()
        return self._has()

    def _list(self) -> _Part:
        items: list[Evaluate] = []
        while not self._take("]"):
            if items:
                self._need(",")
            items.append(self._either().evaluate)
        return _Part(lambda device: [one(device) for one in items])

    def _quantity(self) -> _Part:
        self._need("(")
        text = self._of_kind("string")
        if text is None:
            self._fail("quantity() takes a string such as '40Gi'")
        self._need(")")
        try:
            return _Part(_constant(parse_quantity(text[1:-1])))
        except InvalidQuantity as error:
            self._fail(str(error))

    def _has(self) -> _Part:
        self._need("(")
        inner = self._access()
        self._need(")")
        if inner.target is None:
            self._fail("has() takes a field such as device.attributes['gpu.scheduling'].island")
        target, key = inner.target, inner.key

        def has(device: Mapping[str, Value]) -> bool:
            found = target(device)
            if not isinstance(found, Mapping):
                raise _NoValue
            return key in found

        return _Part(has)


# --- meaning


def _constant(value: Value) -> Evaluate:
    return lambda _: value


def _absorbing(sides: Sequence[Evaluate], *, decides: bool) -> Evaluate:
    """`||` (`decides` true) or `&&`: a side may fail if another one decides."""

    def evaluate(device: Mapping[str, Value]) -> bool:
        failed = False
        for side in sides:
            try:
                found = side(device)
            except _NoValue:
                failed = True
                continue
            if not isinstance(found, bool):
                failed = True
            elif found == decides:
                return decides
        if failed:
            raise _NoValue
        return not decides

    return evaluate


def _negated(inner: Evaluate) -> Evaluate:
    def evaluate(device: Mapping[str, Value]) -> bool:
        found = inner(device)
        if not isinstance(found, bool):
            raise _NoValue
        return not found

    return evaluate


def _comparison(operator: str, left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(device: Mapping[str, Value]) -> bool:
        one, other = left(device), right(device)
        if operator == "in":
            if isinstance(other, list):
                return any(_equal(one, item) for item in other)
            if isinstance(other, Mapping) and isinstance(one, str | int | Decimal):
                return one in other
            raise _NoValue
        if operator in ("==", "!="):
            return _equal(one, other) is (operator == "==")
        order = _order(one, other)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]

    return evaluate


def _equal(one: Value, other: Value) -> bool:
    return type(one) is type(other) and bool(one == other)


def _order(one: Value, other: Value) -> int:
    if type(one) is not type(other) or not isinstance(one, str | int | Decimal):
        raise _NoValue
    return int(one > other) - int(one < other)


def _indexed(target: Evaluate, key: Evaluate) -> Evaluate:
    def evaluate(device: Mapping[str, Value]) -> Value:
        found = target(device)
        if not isinstance(found, Mapping):
            raise _NoValue
        try:
            return found[key(device)]
        except (KeyError, TypeError) as error:
            raise _NoValue from error

    return evaluate


def _call(function: Callable[..., Value], *arguments: Evaluate) -> Evaluate:
    def evaluate(device: Mapping[str, Value]) -> Value:
        return function(*(one(device) for one in arguments))

    return evaluate


def _text(function: Callable[..., Value]) -> Callable[..., Value]:
    """A function of strings."""

    def of_strings(*arguments: Value) -> Value:
        if not all(isinstance(one, str) for one in arguments):
            raise _NoValue
        return function(*arguments)

    return of_strings


def _compared(one: Value, other: Value) -> int:
    """Of two quantities."""
    if not (isinstance(one, Decimal) and isinstance(other, Decimal)):
        raise _NoValue
    return _order(one, other)


_METHODS: dict[str, tuple[int, Callable[..., Value]]] = {
    "startsWith": (1, _text(str.startswith)),
    "endsWith": (1, _text(str.endswith)),
    "contains": (1, _text(str.__contains__)),
    "lowerAscii": (0, _text(str.lower)),
    "upperAscii": (0, _text(str.upper)),
    "compareTo": (1, _compared),
    "isGreaterThan": (1, lambda one, other: _compared(one, other) > 0),
    "isLessThan": (1, lambda one, other: _compared(one, other) < 0),
}
