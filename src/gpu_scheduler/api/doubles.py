"""Keys that stand twice in one JSON object: the reader takes the last of them, silently.

A body and what was read from it in, a refusal that names the key out. Nothing is refused unless
the key was found. Most bodies are only counted: this is on the way of 1,000 jobs at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sized
from typing import Any

import msgspec

from gpu_scheduler.model.errors import InvalidRequest

_ANYTHING = msgspec.json.Decoder()
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_COLONS = (b":", rb"\u003a", rb"\u003A")
"""How one can be written. What only looks like one costs a closer look, and refuses nothing."""


class _Twice(Exception):
    """A key that was found twice; ends the search."""


def check_keys(data: bytes, index: int | None = None) -> None:
    """Refuse a body in which a key stands twice; it must be known to be JSON.

    `index` is its place among others.
    """
    if _lost_some(data, _ANYTHING.decode(data)):
        _refuse(data, index)


def check_keys_of_all(data: bytes, objects: Iterable[Sized]) -> None:
    """The same for a list of objects that was just read from the body, at hardly any cost."""
    if data.count(b":") != sum(map(len, objects)) and _lost_some(data, objects):
        for index, raw in enumerate(_RAW_LIST.decode(data)):
            _refuse(bytes(raw), index)


def _lost_some(data: bytes, read: Any) -> bool:
    """Each key has a colon, and those in strings stay what they are: fewer mean fewer keys."""
    return sum(map(data.count, _COLONS)) > _encode(read).count(b":")


def _refuse(data: bytes, index: int | None) -> None:
    try:
        # Numbers stay text: Python refuses to read some that are too long, and none matters here.
        json.loads(data, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Twice as found:
        error = InvalidRequest(
            f"Invalid request body: '{str(found)[:80]}' stands there twice; give it once"
        )
        error.index = index
        raise error from None


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)
