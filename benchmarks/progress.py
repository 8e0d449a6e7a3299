"""Where a measure stands, on standard error, if somebody is watching."""

from __future__ import annotations

import sys

WIDTH = 78


def show(text: str) -> None:
    """Replace the line that is shown."""
    if sys.stderr.isatty():
        print(f"\r{text[:WIDTH]:<{WIDTH}}", end="", file=sys.stderr, flush=True)


def clear() -> None:
    """Leave an empty line behind."""
    if sys.stderr.isatty():
        print(f"\r{'':<{WIDTH}}\r", end="", file=sys.stderr, flush=True)
