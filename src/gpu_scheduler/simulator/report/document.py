"""A page that needs nothing from elsewhere: what it shows, and the dashboard's script and style.

The content is data: figures, charts, bars and tables. The script draws it with the components of
the dashboard and puts every name into the page as text. A Content-Security-Policy allows this
script and this style only, and no request.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal

Fact = tuple[str, str]
"""A name and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A sentence, such as why a section has no data."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its name, and a sentence under it."""

    name: str
    value: str
    foot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The most important numbers."""

    figures: Sequence[Figure]
    kind: Literal["figures"] = "figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart; `None` where there is no value."""

    name: str
    values: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the same points.

    `axis` says what the points are: seconds since 1970 (`time`), seconds since the start
    (`elapsed`), durations in seconds on a logarithmic axis (`log`), or `nodes`.
    """

    title: str
    note: str
    axis: Literal["time", "elapsed", "log", "nodes"]
    points: Sequence[float]
    series: Sequence[Series]
    unit: str
    kind: Literal["chart"] = "chart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value, and the text to print beside it."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """Bars under one name, one for each series; `note` stands at the end of the row."""

    name: str
    bars: Sequence[Bar | None]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A table of bars that all have the same scale."""

    title: str
    note: str
    first: str
    """What the rows are."""
    series: Sequence[str]
    rows: Sequence[BarRow]
    last: str = ""
    """What the notes are."""
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The heading of a column, and what it means."""

    name: str
    meaning: str = ""
    right: bool = True


MOST_ROWS = 100
"""Longer tables end with a line that says how many rows were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers as text; with a title they are folded. `best` are the row and column of cells."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    best: Sequence[tuple[int, int]] = ()
    title: str = ""
    left_out: int = 0
    kind: Literal["table"] = "table"


def bounded_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str) -> Table:
    """A table of the first rows."""
    left_out = max(0, len(rows) - MOST_ROWS)
    return Table(columns=columns, rows=rows[:MOST_ROWS], title=title, left_out=left_out)


Block = Text | Figures | Chart | Bars | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page."""

    name: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    facts: Sequence[Fact]
    command: str = ""
    sections: Sequence[Section]


def document(page: Page) -> str:
    """The page as HTML. The same page gives the same text, byte for byte."""
    script, style = _built("app.js"), _built("style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report needs JavaScript; it loads nothing from the network.</noscript>
<div id="app"></div>
<script type="application/json" id="report">{_json(page)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _json(page: Page) -> str:
    """JSON that cannot end the script element in which it stands."""
    text = json.dumps(asdict(page), separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _built(name: str) -> str:
    """A file of the dashboard."""
    folder = files("gpu_scheduler") / "dashboard" / "static"
    return (folder / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def write_document(page: Page, path: Path) -> None:
    """Write a page; a reader sees the old file or the new one, never half of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(document(page), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
