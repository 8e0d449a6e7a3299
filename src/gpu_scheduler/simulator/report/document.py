"""A page that needs nothing from elsewhere: style, script and all that it shows are in one file."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from gpu_scheduler.simulator.report.markup import Markup, tag


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
