"""Containers that are still to be removed although their jobs are over: their engine was silent.

Each stands in the journal from before the end of its job until its engine has answered, so that the
next launcher goes on with it. They are asked for one after the other, in the background: an engine
that hangs is not made to hang more often. One whose name is that of unfinished work is left alone.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.context import HELPER_TIMEOUT_MS, Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.loop import Timer, now_ms, wall_ms
from gpu_scheduler.agent.launcher.messages import Form, Key

# --- Asking a container engine until it answers, or for as long as it is worth.
#
# An engine that hangs, or is being restarted, says nothing about a container: that may have ended,
# or
# still run. So nothing is concluded from its silence: it is asked again, and in the end the job is
# ended without it, by the processes that can be found, and its exit code is unknown.

LONGEST_ENGINE_PAUSE_MS = 10_000
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
        self._pause_ms = min(2 * self._pause_ms, LONGEST_ENGINE_PAUSE_MS)


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


# --- Containers that are still to be removed although their jobs are over: their engine was silent.

LEFT, REMOVED = "container", "removed"
FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 60_000
FOR_MS = 30 * 86_400_000
"""An engine that does not remove a container for so long never will."""
WRITE_AGAIN_MS = 1_000


class Removals:
    """What is left to remove, by the attempt that had it."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._left: dict[Key, _Left] = {}
        self._timer: Timer | None = None
        self._asking = False

    def add(self, attempt: Attempt, argv: tuple[str, ...]) -> None:
        """Take the container of this attempt away whenever its engine is back."""
        left = _Left(attempt.key, argv, wall_ms(), patience_ms(attempt))
        left.attempt = attempt
        self._left[attempt.key] = left
        self._write(left)
        self._look()

    def replay(self, record: Form) -> bool:
        """Hear a record of the journal; False if it is about something else."""
        kind = record.get("kind")
        try:
            if kind == LEFT:
                left = _from(record)
                self._left[left.key] = left
            elif kind == REMOVED:
                self._left.pop(_key(record), None)
        except (KeyError, ValueError, TypeError) as error:
            own_log.warn(f"a record was skipped: {error!r}")
        return kind in {LEFT, REMOVED}

    def take_over(self) -> None:
        """Go on with what a former launcher has left."""
        for left in self._left.values():
            left.due_ms = now_ms() + FIRST_PAUSE_MS
        self._look()

    def records(self) -> list[Form]:
        """For the journal when it is written anew."""
        return [left.record() for left in self._left.values()]

    def _write(self, left: _Left) -> None:
        def written(bad: str) -> None:
            if bad:
                self._kit.loop.after(WRITE_AGAIN_MS, again)

        def again() -> None:
            if self._left.get(left.key) is left:
                self._write(left)

        self._kit.journal.append_softly(left.record(), written)

    def _look(self) -> None:
        """Ask for the one that has waited longest, or wait until that can be asked for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking or not self._left:
            return
        for left in self._left.values():
            if left.due_ms <= now_ms() and self._is_of_others(left):
                left.pause()
        left = min(self._left.values(), key=lambda one: one.due_ms)
        wait_ms = left.due_ms - now_ms()
        if wait_ms > 0:
            self._timer = self._kit.loop.after(wait_ms, self._look)
            return
        self._asking = True
        self._kit.tell_engine(
            left.argv, lambda well, text: self._heard(left, well, text), left.call_ms
        )

    def _is_of_others(self, left: _Left) -> bool:
        """An attempt of this name that is not over needs its container, or removes it itself."""
        attempt = self._kit.attempts.get(left.key)
        return attempt is not None and attempt is not left.attempt and attempt.over is None

    def _heard(self, left: _Left, well: bool, text: str) -> None:
        self._asking = False
        is_late = wall_ms() - left.at_ms >= FOR_MS
        is_gone = well or knows_none(text)
        if not is_gone and is_late:
            own_log.warn(f"a container is left behind ({shlex.join(left.argv)}): {text}")
        if not is_gone and not is_late:
            left.pause()
        elif self._left.get(left.key) is left:
            del self._left[left.key]
            self._kit.journal.append_lazily(_named(REMOVED, left.key))
        self._look()


class _Left:
    """One container. `attempt` had it, unless that was with a former launcher."""

    def __init__(self, key: Key, argv: tuple[str, ...], at_ms: int, call_ms: int) -> None:
        self.key = key
        self.argv = argv
        self.at_ms = at_ms
        self.call_ms = call_ms
        self.due_ms = 0
        self.attempt: Attempt | None = None
        self._pause_ms = FIRST_PAUSE_MS

    def pause(self) -> None:
        self.due_ms = now_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)

    def record(self) -> Form:
        """With the whole command: by then another engine may be the one that is found."""
        form = _named(LEFT, self.key)
        form.update(argv=self.argv, at_ms=self.at_ms, call_ms=self.call_ms)
        return form


def _named(kind: str, key: Key) -> Form:
    """Not by the words that name work: a line that is damaged tells nothing about its attempt."""
    return {"kind": kind, "of": key}


def _key(record: Form) -> Key:
    name, member = record["of"]
    return str(name), int(member)


def _from(record: Form) -> _Left:
    argv, call_ms = record["argv"], int(record["call_ms"])
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise ValueError(f"no command: {argv!r}")
    call_ms = min(max(call_ms, LEAST_CALL_MS), HELPER_TIMEOUT_MS)
    return _Left(_key(record), tuple(argv), int(record["at_ms"]), call_ms)
