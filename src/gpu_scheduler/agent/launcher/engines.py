"""Asking a container engine until it answers, or for as long as it is worth.

An engine that hangs, or is being restarted, says nothing about a container: that may have ended, or
still run. So nothing is concluded from its silence: it is asked again, and in the end the job is
ended without it, by the processes that can be found, and its exit code is unknown.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.kit import HELPER_TIMEOUT_MS, Kit
from gpu_scheduler.agent.launcher.loop import now_ms
from gpu_scheduler.agent.launcher.own_log import own_log

FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 10_000
LEAST_CALL_MS = 200
NOT_BEGUN = "the container engine hangs and has not begun the container: exit code unknown"
_KNOWS_NONE = ("no such container", "no such object")
Answered = Callable[[bool, str], None]
"""Whether it went well, and what the engine said."""


def knows_none(text: str) -> bool:
    """Whether an engine says that there is no such container, which is an answer too."""
    return any(words in text.lower() for words in _KNOWS_NONE)


def patience_ms(attempt: Attempt) -> int:
    """How long one question may take."""
    return min(HELPER_TIMEOUT_MS, attempt.work.engine_timeout_ms)


def ask(
    kit: Kit,
    argv: tuple[str, ...],
    answered: Answered,
    *,
    wait_ms: int,
    tries: int = 0,
) -> None:
    """Ask for so long, or so many times; `answered` then hears what was said last."""
    _Question(kit, argv, answered, now_ms() + wait_ms, tries).ask()


class _Question:
    """One that is put until it is answered, or its time is over."""

    def __init__(
        self,
        kit: Kit,
        argv: tuple[str, ...],
        answered: Answered,
        until_ms: int,
        tries: int,
    ) -> None:
        self._kit = kit
        self._argv = argv
        self._answered = answered
        self._until_ms = until_ms
        self._tries = tries
        self._pause_ms = FIRST_PAUSE_MS

    def ask(self) -> None:
        left_ms = self._until_ms - now_ms()
        call_ms = max(LEAST_CALL_MS, min(HELPER_TIMEOUT_MS, left_ms))
        self._kit.tell_engine(self._argv, self._heard, call_ms)

    def _heard(self, well: bool, text: str) -> None:
        is_late = now_ms() + self._pause_ms >= self._until_ms
        if well or knows_none(text) or self._tries == 1 or is_late:
            self._answered(well, text)
            return
        if self._pause_ms == FIRST_PAUSE_MS:
            own_log.warn(f"the container engine does not answer, and is asked again: {text}")
        self._tries = max(0, self._tries - 1)
        self._kit.loop.after(self._pause_ms, self.ask)
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)


def watch_begin(kit: Kit, attempt: Attempt) -> None:
    """See to it that an engine which hangs over the beginning of a container is given up.

    One that fetches an image answers, and whose container runs is left alone although it hangs.
    """
    runner = attempt.runner
    command = () if runner is None else runner.inspect_command(attempt.work)
    if not command:
        return

    def look() -> None:
        ask(kit, command, answered, wait_ms=patience_ms(attempt), tries=1)

    def answered(well: bool, text: str) -> None:
        if well or attempt.phase is not Phase.RUNNING or attempt.stopped_by:
            return
        if knows_none(text):
            watch_begin(kit, attempt)
        elif not kit.census.in_container(attempt):
            attempt.engine_silent = True
            attempt.details.append(NOT_BEGUN)
            own_log.warn(f"{attempt.name}: {NOT_BEGUN}")
            kill_client(kit, attempt)

    attempt.keep(kit.loop.after(attempt.work.engine_timeout_ms, look))


def kill_client(kit: Kit, attempt: Attempt) -> None:
    """End the process of ours that waits for a container; its end is heard as always."""
    if attempt.pidfd >= 0:
        processes.kill_exactly(attempt.pidfd)
    elif attempt.pid in kit.loop.known_children:
        processes.send([attempt.pid], signal.SIGKILL)
