"""A page that needs nothing from elsewhere: style, script and all that it shows are in one file."""

from __future__ import annotations

import os
from html import escape
from importlib.resources import files
from pathlib import Path


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


def document(title: str, *content: str) -> str:
    """The whole text of a page with this content."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _resource("style.css")),
    )
    body = tag(
        "body",
        *content,
        tag("div", id="tip", role="status", hidden="hidden"),
        tag("script", _resource("report.js")),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def write_document(text: str, path: Path) -> None:
    """Write a page; a reader sees the old file or the new one, never half of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _resource(name: str) -> Markup:
    """A file of this package that becomes part of the page."""
    return Markup(files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))
