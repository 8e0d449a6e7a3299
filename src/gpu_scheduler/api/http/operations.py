"""What can be done with which path: one list for routing, for the description and for the docs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.request import Request, Response

Handler = Callable[[Context, Request], Awaitable[Response]]
V1 = "/api/v1"
READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the query."""

    name: str
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string", "maxLength": 256})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path.

    `body` and `answer` are forms (None: none; a tuple: one of them). `errors` are the statuses it
    may answer with besides those that every operation has. `public` operations need no known
    caller on this machine; those that are `public_everywhere` need none from elsewhere either.
    With `keyed` the handler itself keeps its answer for an Idempotency-Key.
    """

    method: str
    path: str
    handler: Handler
    name: str
    summary: str
    tag: str
    body: Any = None
    response: Any = None
    status: int = 200
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    media: str = "application/json"
    body_media: tuple[str, ...] = ("application/json",)
    example: Any = None
    keyed: bool = False
    public: bool = False
    public_everywhere: bool = False

    @property
    def repeats(self) -> bool:
        """Tell whether a key makes it safe to send it again, though its answer is not kept.

        Not for what answers with a secret: that is told once, and cannot be worked out again.
        """
        return self.method not in READING and not self.keyed and "token" not in self.name

    def is_safe_again(self, *, has_key: bool) -> bool:
        """Tell whether sending it twice does no more than sending it once."""
        return self.method in READING or (has_key and (self.keyed or self.repeats))


def integer_parameter(
    name: str, description: str, *, least: int = 0, most: int = 2**53
) -> Parameter:
    """A whole number within bounds."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name=name, description=description, schema=schema)


def boolean_parameter(name: str, description: str) -> Parameter:
    """Yes or no."""
    return Parameter(name=name, description=description, schema={"type": "boolean"})
