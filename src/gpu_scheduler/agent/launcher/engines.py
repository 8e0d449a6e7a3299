"""Asking a container engine until it answers.

An engine that hangs, or is being restarted, says nothing about a container: that may have ended, or
still run. So nothing is concluded from its silence, and it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.agent.launcher.kit import Kit
from gpu_scheduler.agent.launcher.own_log import own_log

FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 10_000
_KNOWS_NONE = ("no such container", "no such object")
Answered = Callable[[bool, str], None]
"""Whether it went well, and what the engine said."""


def knows_none(text: str) -> bool:
    """Whether an engine says that there is no such container, which is an answer too."""
    return any(words in text.lower() for words in _KNOWS_NONE)


def ask(
    kit: Kit,
    argv: tuple[str, ...],
    answered: Answered,
    tries: int = 0,
    pause_ms: int = FIRST_PAUSE_MS,
) -> None:
    """Ask as often as it takes, or so many times; `answered` then hears what was said last."""

    def done(well: bool, text: str) -> None:
        if well or knows_none(text) or tries == 1:
            answered(well, text)
            return
        if pause_ms == FIRST_PAUSE_MS:
            own_log.warn(f"the container engine does not answer, and is asked again: {text}")
        later_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
        left = max(0, tries - 1)
        kit.loop.after(pause_ms, lambda: ask(kit, argv, answered, left, later_ms))

    kit.tell_engine(argv, done)
