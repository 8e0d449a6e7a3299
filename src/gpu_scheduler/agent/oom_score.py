"""Whom the kernel kills when memory is short: jobs, and not the processes that supervise them."""

from __future__ import annotations

import os

PROTECTED, ORDINARY = -900, 0
_FILE = "/proc/self/oom_score_adj"


def set_oom_score(value: int) -> None:
    """Set it for this process and the children that it starts from now on.

    Only root may lower it; for others this changes nothing.
    """
    try:
        file = os.open(_FILE, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(file, str(value).encode())
    except OSError:
        return
    finally:
        os.close(file)
