"""Whether a path lies in one of certain directories, whatever links are on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def both(directories: Iterable[str]) -> tuple[str, ...]:
    """Directories as they are written and as what they resolve to: an admin may write either."""
    found = [path for one in directories for path in (one.rstrip("/"), os.path.realpath(one))]
    return tuple(dict.fromkeys(found))


def lies_in(path: str, directories: tuple[str, ...]) -> bool:
    """Tell whether both the path as it is written and the file that it means lie in there."""
    texts = (os.path.normpath(path), os.path.realpath(path))
    return all(any(Path(text).is_relative_to(one) for one in directories) for text in texts)
