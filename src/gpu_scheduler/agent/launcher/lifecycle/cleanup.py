"""From the end of the main process to the report that nothing runs any more.

What is left of the job is asked, then killed; the runner tidies up; the epilog runs; the end is
written down; only then is it reported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import logs, processes, scratch
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle import containers
from gpu_scheduler.agent.launcher.lifecycle.attempt import (
    Attempt,
    Phase,
    end_record,
    hook_environment,
)
from gpu_scheduler.agent.launcher.lifecycle.containers import Removals
from gpu_scheduler.agent.launcher.loop import now_ms, wall_ms
from gpu_scheduler.agent.launcher.scratch import newly_saved
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.spawn.spawner import NEVER_WENT
from gpu_scheduler.agent.work import Over

LEFTOVER_GRACE_MS = 2_000
LOOK_AGAIN_MS = 25
WRITE_AGAIN_MS = 1_000
REMOVE_AGAIN_MS = 200
REMOVE_TRIES = 20
ENGINE_TRIES = 10
"""So often an engine is asked that may never answer: for about a minute."""
_ENGINE_FAILED = frozenset({125, 126, 127})
"""Exit codes of an engine's client that has not seen its container to the end, if there was one."""
MOST_TOLD = 300
BROKEN = "the launcher failed over this job and ended it; its log tells more"
UNKNOWN = "the launcher that began it had died: exit code unknown"
SILENT = "the container engine does not answer, so the exit code is unknown"
NONE_MADE = "its client was killed, and there was no container: exit code unknown"
NEVER_MADE = "the container was never made"
GONE = "its container was removed by somebody else: exit code unknown"


class Closer:
    """Brings attempts to their end."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.removals = Removals(kit)
        self.gone: Callable[[Attempt], None] = lambda _: None
        """Hears of every attempt that is at its end, at least once."""

    def refuse(self, attempt: Attempt, why: str) -> None:
        """The command never ran; if nobody says why, its process did not live long enough."""
        if not why and not attempt.stopped_by and not any(attempt.details):
            why = NEVER_WENT
        self.ended(attempt, Ending(ran=False, detail=why))

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        """The main process is gone. Heard twice, it counts once."""
        if attempt.ending is not None:
            return
        attempt.ending = ending
        attempt.ended_ms = now_ms()
        attempt.phase = Phase.CLEARING
        attempt.closing = True
        attempt.cancel_timers()
        self.gone(attempt)
        runner = attempt.runner
        if runner is None or not ending.ran:
            self._clear(attempt)
        elif command := runner.inspect_command(attempt.work):
            self._inspect(attempt, command)
        else:
            if attempt.is_session:
                text = scratch.read_small(f"{attempt.work.scratch_dir}/end.json")
                attempt.ending = runner.ending(attempt.work, text)
            elif attempt.adopted and not ending.detail:
                attempt.ending = Ending(detail=UNKNOWN)
            self._clear(attempt)

    def broken(self, attempt: Attempt) -> None:
        """The launcher failed over it: it is ended, whatever it was doing. Safe to repeat."""
        if attempt.over is not None:
            return
        attempt.details.append(BROKEN)
        attempt.recorded("")
        for side in (attempt.gate, attempt.listener):
            if side is not None:
                self._kit.loop.drop(side.fileno())
                side.close()
        attempt.gate = attempt.listener = None
        if attempt.ending is not None:
            self._clear(attempt)
        elif attempt.pid in self._kit.loop.known_children:
            # Its end is heard, and goes the usual way.
            processes.send([attempt.pid], signal.SIGKILL)
        else:
            self._drop_main(attempt)
            self.ended(attempt, Ending(ran=attempt.said_go or attempt.adopted))

    def _drop_main(self, attempt: Attempt) -> None:
        """A main process that is not our child."""
        if attempt.pidfd >= 0:
            self._kit.loop.drop(attempt.pidfd)
            processes.kill_exactly(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = -1

    def _inspect(self, attempt: Attempt, command: tuple[str, ...]) -> None:
        """Who was with the container to its end can wait for the engine; who failed, less long.

        An engine that is not there when the job begins should not keep its devices. How a job has
        ended that was stopped is worth one question that is not answered.
        """
        client = attempt.ending or Ending()
        tries = ENGINE_TRIES if client.exit_code in _ENGINE_FAILED else 0
        whole_ms = attempt.work.engine_timeout_ms
        is_known = attempt.stopped_by or attempt.engine_silent
        wait_ms = containers.patience_ms(attempt) if is_known else whole_ms
        was_killed = attempt.killed or attempt.engine_silent

        def answered(well: bool, text: str) -> None:
            is_told, attempt.engine_silent = attempt.engine_silent, _is_silent(well, text)
            attempt.ending = self._of_container(attempt, client, well, text)
            if is_told and attempt.engine_silent:
                # Why it was given up stands among the details already.
                attempt.ending = Ending()
            if was_killed and attempt.ending.detail == GONE:
                attempt.ending = Ending(detail=NONE_MADE)
            self._clear(attempt)

        containers.ask(self._kit, command, answered, wait_ms=wait_ms, tries=tries)

    def _of_container(self, attempt: Attempt, client: Ending, well: bool, text: str) -> Ending:
        if attempt.runner is None:
            return client
        failed = client.exit_code in _ENGINE_FAILED
        if failed and not well and containers.knows_none(text):
            return Ending(ran=False, detail=logs.last_line(attempt.work) or NEVER_MADE)
        if not well:
            return Ending(detail=GONE if containers.knows_none(text) else _silent(client, text))
        ending = attempt.runner.ending(attempt.work, text)
        if ending.ran:
            return ending
        return Ending(ran=False, detail=logs.last_line(attempt.work) or ending.detail)

    def _clear(self, attempt: Attempt) -> None:
        runner = attempt.runner
        begun = attempt.said_go or attempt.adopted
        command = () if runner is None or not begun else runner.clear_command(attempt.work)
        if command and attempt.engine_silent:
            attempt.details.append("its container is removed when the engine is back")
            self.removals.add(attempt, command)
            self._sweep(attempt)
        elif command:
            containers.ask(
                self._kit,
                command,
                lambda well, text: self._cleared(attempt, command, "" if well else text),
                wait_ms=attempt.work.engine_timeout_ms,
                tries=ENGINE_TRIES,
            )
        else:
            self._sweep(attempt)

    def _cleared(self, attempt: Attempt, command: tuple[str, ...], bad: str) -> None:
        """What the engine does not end is ended without it, before anybody gets the devices."""
        if bad and _is_silent(False, bad):
            attempt.engine_silent = True
            attempt.details.append(f"its container could not be removed yet: {bad}")
            self.removals.add(attempt, command)
        self._sweep(attempt)

    def _sweep(self, attempt: Attempt) -> None:
        """Look, ask, look, kill, look, until nothing is left.

        A walk through /proc can miss who forks meanwhile; who is found by it alone is looked for
        twice.
        """
        left = self._kit.census.left(attempt)
        attempt.empty_looks = 0 if left else attempt.empty_looks + 1
        if attempt.empty_looks > (attempt.adopted or attempt.engine_silent):
            self._swept(attempt)
            return
        now = now_ms()
        if not left:
            pass
        elif not attempt.termed or not attempt.kill_at_ms:
            attempt.termed = True
            soon = now + min(LEFTOVER_GRACE_MS, attempt.work.grace_ms)
            attempt.kill_at_ms = min(attempt.kill_at_ms or soon, soon)
            processes.send(left, signal.SIGTERM)
            processes.send(left, signal.SIGCONT)
        elif now >= attempt.kill_at_ms:
            attempt.group.kill()
            processes.send(left, signal.SIGKILL)
        self._kit.loop.after(LOOK_AGAIN_MS, lambda: self._sweep(attempt))

    def _swept(self, attempt: Attempt) -> None:
        attempt.closing = False
        work = attempt.work
        if work.memory_mb and attempt.group.out_of_memory():
            attempt.details.append(f"killed by the kernel: used more than its {work.memory_mb} MB")
        self._remove_group(attempt, REMOVE_TRIES)
        logs.cap(work)
        # Many a job saves its work when it is told to stop, just before its end.
        if attempt.ending is not None and attempt.ending.ran and (saved := newly_saved(attempt)):
            self._kit.report(saved)
        if not work.epilog or attempt.phase is Phase.OVER:
            self._over(attempt)
            return
        launch = self._kit.helper_launch(
            work.epilog, {**os.environ, **hook_environment(work), **_told(attempt)}
        )

        def done(well: bool, output: str) -> None:
            if not well:
                attempt.epilog_failed = output
                attempt.details.append(f"the epilog {work.epilog[0]!r} failed: {output}")
            self._over(attempt)

        self._kit.errands.run(launch, work.hook_timeout_ms, done)

    def _remove_group(self, attempt: Attempt, tries: int) -> None:
        if not attempt.group.remove() and tries > 0:
            again: Callable[[], None] = lambda: self._remove_group(attempt, tries - 1)  # noqa: E731
            self._kit.loop.after(REMOVE_AGAIN_MS, again)

    def _over(self, attempt: Attempt) -> None:
        ending = attempt.ending or Ending()
        ran = ending.ran
        details = (ending.detail, *attempt.details)
        over = Over(
            allocation_id=attempt.key[0],
            member=attempt.key[1],
            exit_code=ending.exit_code if ran else None,
            signal=ending.signal if ran else None,
            ran=ran,
            at_ms=wall_ms(),
            run_ms=max(0, attempt.ended_ms - attempt.began_ms) if ran else 0,
            stopped_by=attempt.stopped_by,
            detail="; ".join(dict.fromkeys(filter(None, details))),
            prolog_failed=_short(attempt.prolog_failed),
            epilog_failed=_short(attempt.epilog_failed),
        )
        self.settle(attempt, over)

    def settle(self, attempt: Attempt, over: Over) -> None:
        """Write the end, then report it.

        On a full disk it is reported all the same, and written as soon as there is room: it is
        certain, and somebody waits for the devices.
        """
        attempt.over = over
        attempt.phase = Phase.OVER
        self.gone(attempt)
        processes.send(self._kit.census.strays(), signal.SIGKILL)
        record = end_record(attempt, over)

        def written(bad: str) -> None:
            self._kit.report(over)
            if bad:
                self._kit.loop.after(WRITE_AGAIN_MS, write_again)

        def again(bad: str) -> None:
            if bad:
                self._kit.loop.after(WRITE_AGAIN_MS, write_again)

        def write_again() -> None:
            if self._kit.attempts.get(attempt.key) is attempt:
                self._kit.journal.append_softly(record, again)

        # The server makes it durable anyway, and the disk takes longer than many a job.
        self._kit.journal.append_softly(record, written)


def _is_silent(well: bool, text: str) -> bool:
    return not well and not containers.knows_none(text)


def _silent(client: Ending, text: str) -> str:
    """What is known although the engine does not tell how its container ended."""
    told = f"{SILENT}: {text}"
    if client.exit_code is not None:
        told += f"; its client ended with exit code {client.exit_code}"
    return told


def _short(text: str) -> str:
    """One line for people; a hook may have written a lot."""
    return " ".join(text.split())[:MOST_TOLD]


def _told(attempt: Attempt) -> dict[str, str]:
    """How the job ended, for the epilog."""
    ending = attempt.ending or Ending()
    return {
        "TGPU_EXIT_CODE": "" if ending.exit_code is None else str(ending.exit_code),
        "TGPU_EXIT_SIGNAL": "" if ending.signal is None else str(ending.signal),
        "TGPU_STOPPED_BY": attempt.stopped_by,
    }
