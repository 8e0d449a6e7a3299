"""What an answer should tell and the picture does not know: noted by who makes the answer.

Rows are read as they are now; places and reasons come from the picture, which is older on a server
that stands by. There the leader is asked instead. Where nobody wants to know, noting does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_noted: ContextVar[list[str] | None] = ContextVar("gaps", default=None)


def note_gap(name: str) -> None:
    """The picture does not know this job or attempt, and by its row it should."""
    gaps = _noted.get()
    if gaps is not None:
        gaps.append(name)


@contextmanager
def noting_gaps() -> Iterator[list[str]]:
    """Collect what is noted in the block."""
    gaps: list[str] = []
    before = _noted.set(gaps)
    try:
        yield gaps
    finally:
        _noted.reset(before)
