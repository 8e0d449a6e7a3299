"""One setting: a field of a dataclass with its meaning and range beside it."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

T = TypeVar("T")

DAY_S = 86_400.0
LAST_PORT = 65_535


def setting(
    default: T,
    about: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    note: str = "",
    secret: bool = False,
) -> T:
    """A field with its meaning; `note` says which of several wishes the default follows.

    The value of a `secret` is shown to nobody.
    """
    return field(
        default=default,
        metadata={
            "about": about,
            "least": least,
            "most": most,
            "choices": choices,
            "note": note,
            "secret": secret,
        },
    )


def table(form: Any, about: str, *, note: str = "") -> dict[str, Any]:
    """A field with entries of the reader's own naming, each of them read as `form` (msgspec)."""
    return field(default_factory=dict, metadata={"about": about, "form": form, "note": note})
