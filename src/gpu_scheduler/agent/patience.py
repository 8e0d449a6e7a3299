"""Looking at directories of users, which may be on a file server that is gone.

Such a look never comes back and cannot be ended. So it has a thread of its own and is waited for
only shortly; while it hangs the same is not looked for again. One user's dead server then costs
that user's jobs a moment, and nobody else anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 0.5
T = TypeVar("T")
_hanging: dict[str, threading.Thread] = {}


def looked(place: str, look: Callable[[], T], otherwise: T) -> T:
    """What a look at a place finds, or `otherwise` if that takes too long."""
    before = _hanging.get(place)
    if before is not None and before.is_alive():
        return otherwise
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(look()), name="look", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        _hanging[place] = thread
        return otherwise
    _hanging.pop(place, None)
    return found[0] if found else otherwise
