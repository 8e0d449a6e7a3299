"""Compare a value with a stored snapshot file, or store it.

`UPDATE_SNAPSHOTS=1 pytest ...` writes the files instead of comparing. A difference fails the test
with a unified diff and that command.
"""

import json
import os
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

UPDATE_VARIABLE = "UPDATE_SNAPSHOTS"
MOST_DIFF_LINES = 200
ROOT = Path(__file__).resolve().parent.parent


def check_json(path: Path, value: Any) -> None:
    """Compare a JSON value, with sorted keys and one item per line."""
    check_text(path, as_json(value))


def as_json(value: Any) -> str:
    """Readable JSON that does not depend on the order of dictionaries."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def check_text(path: Path, text: str) -> None:
    """Compare a text that ends with a newline."""
    check_stored(path, text, lambda stored: stored == text)


def check_stored(path: Path, text: str, equal: Callable[[str], bool]) -> None:
    """Compare with a given rule of equality; the diff is between the two texts."""
    if os.environ.get(UPDATE_VARIABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8") if path.exists() else ""
    if equal(stored):
        return
    name = str(path.relative_to(ROOT))
    lines = list(
        unified_diff(stored.splitlines(), text.splitlines(), name, "found", lineterm="", n=4)
    )
    left_out = len(lines) - MOST_DIFF_LINES
    if left_out > 0:
        lines = [*lines[:MOST_DIFF_LINES], f"... and {left_out} more lines"]
    pytest.fail(
        f"{name} differs from what was found. If the change is intended, run\n"
        f"    {UPDATE_VARIABLE}=1 pytest {path.parent.parent.relative_to(ROOT)}\n"
        "and commit the new file.\n" + "\n".join(lines),
        pytrace=False,
    )
