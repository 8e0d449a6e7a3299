"""HTML and SVG as values: what is not `Markup` is text, and text is always escaped."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


_VOID = frozenset({"meta", "br"})
"""Elements of HTML that have no end tag."""


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """One element. `class_` is `class`, `data_tip` is `data-tip`; `None` leaves one out."""
    opening = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Children side by side, each escaped unless it is markup."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    )


def _value_text(value: str | float) -> str:
    """Coordinates are cut to a tenth of a pixel: the rest only makes the file larger."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(str(value))
