"""Containers: how one of the job's user ended, and root's engine, which may hang.

A hanging or restarting engine says nothing about a container: it may have ended, or still run. So
nothing is concluded from a missing answer: the engine is called again, and in the end the job is
ended without it, by the processes that can be found, and its exit code is unknown. Such a container
is in the journal from before the end of its job until the engine has removed it, so that the next
launcher goes on with it.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
from contextlib import suppress

from gpu_scheduler.agent.launcher import log_rotation, processes, scratch
from gpu_scheduler.agent.launcher.context import HELPER_TIMEOUT_MS, HelperDone, LauncherContext
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.log_rotation import launcher_log
from gpu_scheduler.agent.launcher.loop import Arguments, Timer, now_ms, wall_ms
from gpu_scheduler.agent.launcher_protocol import (
    BEGUN,
    CREATING,
    NOT_BEGUN,
    PULLING,
    Container,
    Key,
    Message,
    Work,
    in_rootless_container,
)
from gpu_scheduler.agent.runners import rootless
from gpu_scheduler.agent.runners.container import stage_directory
from gpu_scheduler.agent.runners.interface import Ending

MIN_CALL_MS = 200
FIRST_PAUSE_MS = 500
MAX_CALL_PAUSE_MS = 10_000
MAX_REMOVAL_PAUSE_MS = 60_000
GIVE_UP_AFTER_MS = 30 * 86_400_000
"""An engine that has not removed a container in this time never will."""
WRITE_RETRY_MS = 1_000
NOT_CREATED = "the container engine hangs and has not begun the container: exit code unknown"
NEVER_MADE = "the container was never made"
SEE_DOCTOR = "if other images fail too, run 'tgpu doctor' on the node as the job's user"
CLIENT_KILLED = "its client was killed: exit code unknown"
MIN_PROGRESS_BYTES = 64 * 1024
MIN_PROGRESS_TICKS = 50
"""Podman that reads and writes less and uses less CPU time between two checks hangs."""
FIRST_PHASE_CHECK_MS = 1_000
MAX_PHASE_CHECK_MS = 5_000
"""A container that begins before the first check is reported as running alone."""
START_FAILS_WITHIN_MS = 60_000
"""A container that fails later than this, without a trace of a start, counts as one that ran."""
NO_PROGRAM = frozenset({126, 127})
"""Podman's exit codes for a command or a working directory that the image does not have."""
_SIGNAL_OFFSET = 128
_DETACH = 2 | 8
"""MNT_DETACH and UMOUNT_NOFOLLOW."""
PENDING, REMOVED = "container", "removed"
"""Kinds of journal records."""
_NO_CONTAINER = ("no such container", "no such object")


def says_no_container(text: str) -> bool:
    """Whether an engine answers that there is no such container, which is an answer too."""
    return any(words in text.lower() for words in _NO_CONTAINER)


def call_timeout_ms(attempt: Attempt) -> int:
    """How long one call of the engine may take."""
    return min(HELPER_TIMEOUT_MS, attempt.work.engine_timeout_ms)


def call_engine(
    context: LauncherContext,
    argv: tuple[str, ...],
    done: HelperDone,
    *arguments: object,
    wait_ms: int,
    tries: int = 0,
) -> None:
    """Call the engine until it answers, for so long or so many times; `done` gets the last answer.

    `tries` 0: as often as fits into `wait_ms`.
    """
    _EngineCall(context, argv, (done, arguments), now_ms() + wait_ms, tries).run()


class _EngineCall:
    """One command that is repeated with back-off until the engine answers."""

    def __init__(
        self,
        context: LauncherContext,
        argv: tuple[str, ...],
        done: tuple[HelperDone, Arguments],
        until_ms: int,
        tries: int,
    ) -> None:
        self._context = context
        self._argv = argv
        self._done = done
        self._until_ms = until_ms
        self._tries = tries
        self._pause_ms = FIRST_PAUSE_MS

    def run(self) -> None:
        left_ms = self._until_ms - now_ms()
        call_ms = max(MIN_CALL_MS, min(HELPER_TIMEOUT_MS, left_ms))
        self._context.helpers.run_engine(self._argv, self._answered, timeout_ms=call_ms)

    def _answered(self, ok: bool, text: str) -> None:
        is_late = now_ms() + self._pause_ms >= self._until_ms
        if ok or says_no_container(text) or self._tries == 1 or is_late:
            done, arguments = self._done
            self._context.loop.call(done, *arguments, ok, text)
            return
        if self._pause_ms == FIRST_PAUSE_MS:
            launcher_log.warning(f"the container engine does not answer; will retry: {text}")
        self._tries = max(0, self._tries - 1)
        self._context.loop.after(self._pause_ms, self.run)
        self._pause_ms = min(2 * self._pause_ms, MAX_CALL_PAUSE_MS)


def rootless_ending(attempt: Attempt, client: Ending) -> Ending:
    """How a container of the job's user ended, from podman's exit code.

    Its files are the user's own, so a late failure counts as a run: else a user could run for free.
    """
    work, code = attempt.work, client.exit_code
    if attempt.stopped_by == NOT_BEGUN and not _has_begun(work):
        return Ending(ran=False)
    if attempt.adopted and code is None:
        text = (scratch.read_podman_file(work, rootless.EXIT_FILE) or "").strip()
        code = int(text) if text.isdecimal() and len(text) <= 3 else None
    is_early = now_ms() - attempt.began_ms < START_FAILS_WITHIN_MS
    if code != 0 and is_early and not _has_begun(work):
        return Ending(ran=False, detail=_why_not_begun(attempt, code))
    if code is None:
        was_killed = attempt.stop.sigkill_sent and not attempt.adopted
        return Ending(signal=signal.SIGKILL) if was_killed else Ending(detail=CLIENT_KILLED)
    if _SIGNAL_OFFSET < code < _SIGNAL_OFFSET + signal.NSIG:
        return Ending(signal=code - _SIGNAL_OFFSET)
    detail = log_rotation.engine_error(work) if code == rootless.ENGINE_FAILED else ""
    return Ending(exit_code=code, detail=detail)


def _why_not_begun(attempt: Attempt, code: int | None) -> str:
    """Why podman began no container: its words, and a hint unless the job itself is the cause."""
    words = log_rotation.engine_error(attempt.work) or NEVER_MADE
    if attempt.stopped_by or code in NO_PROGRAM:
        return words
    return f"{words}; {SEE_DOCTOR}"


def _has_begun(work: Work) -> bool:
    """Whether podman of the job's user has begun the container."""
    return bool(scratch.read_podman_file(work, rootless.PID_FILE))


def remove_links_and_mounts(work: Work) -> None:
    """Remove podman's link of a container of the job's user; unbind mounts for root's engine."""
    if in_rootless_container(work):
        rootless.remove_run_link(work)
    elif work.runner == "container" and (stage := stage_directory(work)):
        _unstage(stage)


def _unstage(stage: str) -> None:
    try:
        places = os.listdir(stage)
    except OSError:
        return
    umount = ctypes.CDLL(None).umount2
    for name in places:
        place = f"{stage}/{name}"
        umount(place.encode(), _DETACH)
        with suppress(OSError):
            if os.path.isdir(place):
                os.rmdir(place)
            else:
                os.unlink(place)
    with suppress(OSError):
        os.rmdir(stage)


def watch_creation(context: LauncherContext, attempt: Attempt) -> None:
    """Give up an engine that hangs while it creates the container.

    An engine that pulls an image answers, and a container that runs is left alone although its
    engine hangs. Podman of the job's user cannot be asked: it hangs if it does nothing.
    """
    if attempt.in_rootless_container:
        _watch_progress(attempt, context)
        return
    runner = attempt.runner
    command = () if runner is None else runner.inspect_command(attempt.work)
    if command:
        wait_ms = attempt.work.engine_timeout_ms
        attempt.add_timer(context.loop.after(wait_ms, _check_creation, attempt, context, command))


def _check_creation(attempt: Attempt, context: LauncherContext, command: tuple[str, ...]) -> None:
    wait_ms = call_timeout_ms(attempt)
    call_engine(context, command, _creation_answered, attempt, context, wait_ms=wait_ms, tries=1)


def _creation_answered(attempt: Attempt, context: LauncherContext, ok: bool, text: str) -> None:
    if ok or attempt.phase is not Phase.RUNNING or attempt.stopped_by:
        return
    if says_no_container(text):
        watch_creation(context, attempt)
    elif not context.tracker.in_container(attempt):
        attempt.engine_unresponsive = True
        attempt.details.append(NOT_CREATED + _engine_words(attempt.work))
        launcher_log.warning(f"{attempt.name}: {attempt.details[-1]}")
        kill_main(context, attempt)


def _watch_progress(attempt: Attempt, context: LauncherContext) -> None:
    before = processes.activity(context.tracker.tree(attempt))
    wait_ms = attempt.work.engine_timeout_ms
    attempt.add_timer(context.loop.after(wait_ms, _check_progress, attempt, context, before))


def _check_progress(attempt: Attempt, context: LauncherContext, before: tuple[int, int]) -> None:
    """Stop podman that has not begun the container and has done nothing since the last check.

    A pull, and the copy of an image with other owners, may take longer than the timeout.
    """
    if attempt.phase is not Phase.RUNNING or attempt.stopped_by or _has_begun(attempt.work):
        return
    size, ticks = processes.activity(context.tracker.tree(attempt))
    if abs(size - before[0]) >= MIN_PROGRESS_BYTES or abs(ticks - before[1]) >= MIN_PROGRESS_TICKS:
        _watch_progress(attempt, context)
        return
    attempt.stopped_by = NOT_BEGUN
    context.journal.append(attempt.add_record("stop", why=NOT_BEGUN))
    seconds = attempt.work.engine_timeout_ms / 1000
    attempt.details.append(
        f"podman hung before it began the container: it did nothing for {seconds:g} s"
        + _engine_words(attempt.work)
    )
    launcher_log.warning(f"{attempt.name}: {attempt.details[-1]}")
    kill_main(context, attempt)


def _engine_words(work: Work) -> str:
    """What the engine wrote last, for a message."""
    words = log_rotation.engine_error(work)
    return f"; it wrote last: {words}" if words else ""


def watch_phase(context: LauncherContext, attempt: Attempt) -> None:
    """Report how far the engine is until the container begins: a pull may take minutes."""
    if attempt.work.runner == "container":
        _check_phase_after(attempt, context, FIRST_PHASE_CHECK_MS)


def _check_phase_after(attempt: Attempt, context: LauncherContext, wait_ms: int) -> None:
    attempt.add_timer(context.loop.after(wait_ms, _check_phase, attempt, context, wait_ms))


def _check_phase(attempt: Attempt, context: LauncherContext, wait_ms: int) -> None:
    if attempt.phase is not Phase.RUNNING:
        return
    next_ms = min(2 * wait_ms, MAX_PHASE_CHECK_MS)
    if attempt.in_rootless_container:
        phase = BEGUN
        if not _has_begun(attempt.work):
            mark = scratch.read_podman_file(attempt.work, rootless.PULLING_FILE)
            phase = CREATING if mark is None else PULLING
        _report_phase(attempt, context, phase, next_ms)
    elif context.tracker.in_container(attempt):
        _report_phase(attempt, context, BEGUN, next_ms)
    elif attempt.runner is not None:
        command = attempt.runner.image_command(attempt.work)
        arguments = (attempt, context, next_ms)
        wait_ms = call_timeout_ms(attempt)
        context.helpers.run_engine(command, _image_looked_up, *arguments, timeout_ms=wait_ms)


def _image_looked_up(
    attempt: Attempt, context: LauncherContext, next_ms: int, ok: bool, text: str
) -> None:
    del text
    if attempt.phase is Phase.RUNNING:
        _report_phase(attempt, context, CREATING if ok else PULLING, next_ms)


def _report_phase(attempt: Attempt, context: LauncherContext, phase: str, next_ms: int) -> None:
    """Report a change; a container that began at once is no news."""
    if phase != (attempt.container_phase or BEGUN):
        attempt.container_phase = phase
        context.report(container_report(attempt))
    if phase != BEGUN and not attempt.stopped_by:
        _check_phase_after(attempt, context, next_ms)


def container_report(attempt: Attempt) -> Container:
    """How far the engine of its container is."""
    return Container(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        at_ms=wall_ms(),
        phase=attempt.container_phase,
    )


def kill_main(context: LauncherContext, attempt: Attempt) -> None:
    """Kill the main process itself: a child at its gate, or the client of a container."""
    if attempt.pidfd >= 0:
        processes.kill_pidfd(attempt.pidfd)
    elif attempt.pid in context.loop.known_children:
        processes.send([attempt.pid], signal.SIGKILL)


class PendingRemovals:
    """Containers of jobs that are over, still to be removed because their engine did not answer.

    They are removed one after the other, in the background. A container whose name is that of
    unfinished work is left alone.
    """

    def __init__(self, context: LauncherContext) -> None:
        self._context = context
        self._pending: dict[Key, _Removal] = {}
        self._timer: Timer | None = None
        self._calling = False

    def add(self, attempt: Attempt, argv: tuple[str, ...]) -> None:
        """Remove the container of this attempt as soon as its engine answers."""
        removal = _Removal(attempt.key, argv, wall_ms(), call_timeout_ms(attempt))
        removal.attempt = attempt
        self._pending[attempt.key] = removal
        self._write(removal)
        self._run_next()

    def replay(self, record: Message) -> bool:
        """Apply a record of the journal; False if it is about something else."""
        kind = record.get("kind")
        try:
            if kind == PENDING:
                removal = _decode_removal(record)
                self._pending[removal.key] = removal
            elif kind == REMOVED:
                self._pending.pop(_decode_key(record), None)
        except (KeyError, ValueError, TypeError) as error:
            launcher_log.warning(f"journal record skipped: {error!r}")
        return kind in {PENDING, REMOVED}

    def resume(self) -> None:
        """Go on with what a former launcher has left."""
        for removal in self._pending.values():
            removal.due_ms = now_ms() + FIRST_PAUSE_MS
        self._run_next()

    def records(self) -> list[Message]:
        """The records for a rewritten journal."""
        return [removal.encode() for removal in self._pending.values()]

    def _write(self, removal: _Removal) -> None:
        if self._pending.get(removal.key) is removal:
            self._context.journal.append_unsynced(removal.encode(), self._written, removal)

    def _written(self, removal: _Removal, error: str) -> None:
        if error:
            self._context.loop.after(WRITE_RETRY_MS, self._write, removal)

    def _run_next(self) -> None:
        """Remove the container that has waited longest, or wait until its next try is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calling or not self._pending:
            return
        for removal in self._pending.values():
            if removal.due_ms <= now_ms() and self._is_in_use(removal):
                removal.back_off()
        removal = min(self._pending.values(), key=lambda one: one.due_ms)
        wait_ms = removal.due_ms - now_ms()
        if wait_ms > 0:
            self._timer = self._context.loop.after(wait_ms, self._run_next)
            return
        self._calling = True
        self._context.helpers.run_engine(
            removal.argv, self._answered, removal, timeout_ms=removal.call_ms
        )

    def _is_in_use(self, removal: _Removal) -> bool:
        """An unfinished attempt of this name needs its container, or removes it itself."""
        attempt = self._context.attempts.get(removal.key)
        return attempt is not None and attempt is not removal.attempt and attempt.over is None

    def _answered(self, removal: _Removal, ok: bool, text: str) -> None:
        self._calling = False
        is_late = wall_ms() - removal.at_ms >= GIVE_UP_AFTER_MS
        is_gone = ok or says_no_container(text)
        if not is_gone and is_late:
            command = shlex.join(removal.argv)
            launcher_log.warning(f"container not removed ({command}): {text}")
        if not is_gone and not is_late:
            removal.back_off()
        elif self._pending.get(removal.key) is removal:
            del self._pending[removal.key]
            self._context.journal.append_lazily(_record(REMOVED, removal.key))
        self._run_next()


class _Removal:
    """One container to remove. `attempt` had it, unless that was with a former launcher."""

    def __init__(self, key: Key, argv: tuple[str, ...], at_ms: int, call_ms: int) -> None:
        self.key = key
        self.argv = argv
        self.at_ms = at_ms
        self.call_ms = call_ms
        self.due_ms = 0
        self.attempt: Attempt | None = None
        self._pause_ms = FIRST_PAUSE_MS

    def back_off(self) -> None:
        self.due_ms = now_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, MAX_REMOVAL_PAUSE_MS)

    def encode(self) -> Message:
        """With the whole command: the next launcher may find another engine."""
        record = _record(PENDING, self.key)
        record.update(argv=self.argv, at_ms=self.at_ms, call_ms=self.call_ms)
        return record


def _record(kind: str, key: Key) -> Message:
    """Not with the fields that name work: a damaged line must not be taken for the attempt's."""
    return {"kind": kind, "of": key}


def _decode_key(record: Message) -> Key:
    name, member = record["of"]
    return str(name), int(member)


def _decode_removal(record: Message) -> _Removal:
    argv, call_ms = record["argv"], int(record["call_ms"])
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise ValueError(f"no command: {argv!r}")
    call_ms = min(max(call_ms, MIN_CALL_MS), HELPER_TIMEOUT_MS)
    return _Removal(_decode_key(record), tuple(argv), int(record["at_ms"]), call_ms)
