"""Named SQL from the files beside this module.

A line `-- name: x` begins the query `x`; it ends where the next one begins. Names in braces are
filled in once, when the program starts, or by the caller; values are always bound.
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def named_queries(file: str) -> dict[str, str]:
    """All queries of a file, by name, without their comments."""
    text = (files("gpu_scheduler.store") / "sql" / file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {
        name: _COMMENT.sub("", query).strip()
        for name, query in zip(parts[::2], parts[1::2], strict=True)
    }


def migrations(database: str = "") -> list[tuple[int, str]]:
    """The steps from nothing to the newest form: version and script, in order.

    Of SQLite, or of the database that is named.
    """
    folder = files("gpu_scheduler.store") / "sql" / database / "migrations"
    steps = [
        (int(step.name.partition("_")[0]), step.read_text(encoding="utf-8"))
        for step in folder.iterdir()
        if step.name.endswith(".sql")
    ]
    return sorted(steps)
