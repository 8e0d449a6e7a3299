"""How texts travel to PostgreSQL and back.

PostgreSQL keeps every character but NUL. The two smallest characters are therefore kept as pairs
that begin with the second smallest, which leaves the order of texts as it was. Hardly any text has
either of them, so looking for them is all it costs.
"""

from __future__ import annotations

from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.types.string import StrDumper

MARK = "\x01"
_PAIRS = {0: "\x01\x01", 1: "\x01\x02"}
_COPY = _PAIRS | {
    ord("\\"): "\\\\",
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}


def kept(text: str) -> str:
    """A text as PostgreSQL keeps it."""
    return text.translate(_PAIRS) if "\0" in text or MARK in text else text


def copied(text: str) -> str:
    """A text as it stands in the rows of a COPY."""
    if text.isprintable() and "\\" not in text:
        return text
    return text.translate(_COPY)


def read(text: str) -> str:
    """A text as it was before."""
    if MARK not in text:
        return text
    return text.replace("\x01\x01", "\0").replace("\x01\x02", MARK)


class TextDumper(StrDumper):
    """Writes texts."""

    def dump(self, obj: str) -> Any:
        """The bytes of a text."""
        return super().dump(kept(obj))


class TextLoader(Loader):
    """Reads texts."""

    def load(self, data: Buffer) -> str:
        """The text of some bytes."""
        text = str(data, "utf-8")
        return read(text) if MARK in text else text


def adapt(adapters: AdaptersMap) -> None:
    """Make a connection read and write texts in this way."""
    adapters.register_dumper(str, TextDumper)
    adapters.register_loader("text", TextLoader)
