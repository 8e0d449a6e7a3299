"""The file with the token that a machine joins with. It may be gone later: it is needed once."""

from __future__ import annotations

import os

from gpu_scheduler.settings.trusted import read_trusted

LARGEST_TOKEN = 4096


def token_in(file: str) -> str:
    """The token of a file; of one that is gone none."""
    if not file or not os.path.exists(file):  # noqa: PTH110 - pathlib would cost its import
        return ""
    return read_trusted(file, LARGEST_TOKEN, secret=True).decode("ascii", "replace").strip()
