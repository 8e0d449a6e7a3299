"""How texts travel to PostgreSQL and back.

PostgreSQL keeps every character but NUL. The two smallest characters are therefore kept as pairs
that begin with the second smallest, which leaves the order of texts as it was. Hardly any text has
either of them, so looking for them is all it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psycopg import Cursor
from psycopg.adapt import AdaptersMap
from psycopg.postgres import types
from psycopg.types.string import StrBinaryDumper, StrDumper

MARK = "\x01"
TEXT_OID = types["text"].oid
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
    """Writes texts in the form in which PostgreSQL keeps every character."""

    def dump(self, obj: str) -> Any:
        """The bytes of a text."""
        return super().dump(kept(obj))


class BinaryTextDumper(StrBinaryDumper):
    """Writes texts in arrays, which then need no quotes."""

    def dump(self, obj: str) -> Any:
        """The bytes of a text."""
        return super().dump(kept(obj))


def adapt(adapters: AdaptersMap) -> None:
    """Make a connection write texts in this way."""
    adapters.register_dumper(str, BinaryTextDumper)
    adapters.register_dumper(str, TextDumper)


def rows_of(cursor: Cursor[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows of a cursor with their texts as they were before."""
    places = [
        place
        for place, column in enumerate(cursor.description or ())
        if column.type_code == TEXT_OID
    ]
    for row in cursor.fetchall():
        for place in places:
            text = row[place]
            if text is not None and MARK in text:
                yield tuple([read(value) if isinstance(value, str) else value for value in row])
                break
        else:
            yield row
