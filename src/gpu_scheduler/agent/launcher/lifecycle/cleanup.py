"""From the end of the main process until nothing of the job is left on the node.

The supervisor hands over an attempt with its ending. The container engine is asked how the job
ended and removes the container; leftover processes get SIGTERM, then SIGKILL; the epilog runs.
`cleanup_finished` then reports the result as an `Over`.
"""

from __future__ import annotations

import os
import signal

from gpu_scheduler.agent.launcher import log_rotation, processes, scratch
from gpu_scheduler.agent.launcher.context import AttemptEvents, LauncherContext
from gpu_scheduler.agent.launcher.lifecycle import containers
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase, hook_environment
from gpu_scheduler.agent.launcher.lifecycle.containers import PendingRemovals, says_no_container
from gpu_scheduler.agent.launcher.loop import now_ms, wall_ms
from gpu_scheduler.agent.launcher_protocol import Over, memory_limit_mb
from gpu_scheduler.agent.runners.container import ContainerRunner
from gpu_scheduler.agent.runners.interface import Ending

LEFTOVER_GRACE_MS = 2_000
SCAN_AGAIN_MS = 25
REMOVE_GROUP_AGAIN_MS = 200
REMOVE_GROUP_TRIES = 20
ENGINE_TRIES = 10
"""Calls of an engine that may never answer: for about a minute."""
_ENGINE_FAILED = frozenset({125, 126, 127})
"""Exit codes of an engine's client that did not wait for the end of the container."""
MAX_HOOK_ERROR = 300
UNKNOWN = "the launcher that began it had died: exit code unknown"
NOT_SEEN = "the launcher did not see how its process ended: exit code unknown"
NO_ANSWER = "the container engine does not answer, so the exit code is unknown"
CLIENT_KILLED = "its client was killed, and there was no container: exit code unknown"
REMOVED_BY_OTHERS = "its container was removed by another process: exit code unknown"


class Cleanup:
    """Removes what a job leaves behind."""

    def __init__(self, context: LauncherContext, events: AttemptEvents) -> None:
        self._context = context
        self._events = events
        self.removals = PendingRemovals(context)

    def begin(self, attempt: Attempt, ending: Ending) -> None:
        """Find out how the job ended, then clean up."""
        attempt.cleaning_up = True
        runner = attempt.runner
        if runner is not None and ending.ran:
            if command := runner.inspect_command(attempt.work):
                self._inspect(attempt, ending, command)
                return
            if attempt.in_rootless_container:
                attempt.ending = containers.rootless_ending(attempt, ending)
            elif attempt.is_session:
                text = scratch.read_small(f"{attempt.work.scratch_dir}/end.json")
                attempt.ending = runner.ending(attempt.work, text)
            elif attempt.adopted and not ending.detail:
                attempt.ending = Ending(detail=UNKNOWN)
        self.remove_leftovers(attempt)

    def _inspect(self, attempt: Attempt, client: Ending, command: tuple[str, ...]) -> None:
        """Ask the engine how the container ended.

        A client that waited for the end of its container is worth the whole engine timeout. A
        client that failed is not: an engine that is not there should not keep the job's devices.
        The ending of a job that was stopped is worth one call.
        """
        is_known = attempt.stopped_by or attempt.engine_unresponsive
        whole_ms = attempt.work.engine_timeout_ms
        containers.call_engine(
            self._context,
            command,
            self._inspected,
            attempt,
            client,
            attempt.stop.sigkill_sent or attempt.engine_unresponsive,
            wait_ms=containers.call_timeout_ms(attempt) if is_known else whole_ms,
            tries=_engine_tries(attempt, client),
        )

    def _inspected(
        self, attempt: Attempt, client: Ending, was_killed: bool, ok: bool, text: str
    ) -> None:
        was_unresponsive = attempt.engine_unresponsive
        attempt.engine_unresponsive = not ok and not says_no_container(text)
        attempt.ending = _container_ending(attempt, client, ok, text)
        if was_unresponsive and attempt.engine_unresponsive:
            # The details already say why it was given up.
            attempt.ending = Ending()
        if was_killed and attempt.ending.detail == REMOVED_BY_OTHERS:
            attempt.ending = Ending(detail=CLIENT_KILLED)
        self.remove_leftovers(attempt)

    def remove_leftovers(self, attempt: Attempt) -> None:
        """Remove container and processes. Safe to repeat after an error in the launcher."""
        runner = attempt.runner
        began = attempt.start.released or attempt.adopted
        command = () if runner is None or not began else runner.clear_command(attempt.work)
        if command and attempt.engine_unresponsive:
            attempt.details.append("its container is removed when the engine is back")
            self.removals.add(attempt, command)
            self._end_processes(attempt)
        elif command:
            containers.call_engine(
                self._context,
                command,
                self._container_removed,
                attempt,
                command,
                wait_ms=attempt.work.engine_timeout_ms,
                tries=ENGINE_TRIES,
            )
        else:
            self._end_processes(attempt)

    def _container_removed(
        self, attempt: Attempt, command: tuple[str, ...], ok: bool, text: str
    ) -> None:
        """Whatever the engine says, the processes are gone before the devices are given out."""
        if not ok and text and not says_no_container(text):
            attempt.engine_unresponsive = True
            attempt.details.append(f"its container could not be removed yet: {text}")
            self.removals.add(attempt, command)
        self._end_processes(attempt)

    def _end_processes(self, attempt: Attempt) -> None:
        """Scan and signal until no process is left: SIGTERM first, SIGKILL after a grace period.

        A scan of /proc can miss a process that forks meanwhile; where only that finds the
        processes, two scans in a row must find none.
        """
        left = self._context.tracker.leftovers(attempt)
        attempt.empty_scans = 0 if left else attempt.empty_scans + 1
        if attempt.empty_scans > (attempt.adopted or attempt.engine_unresponsive):
            self._processes_gone(attempt)
            return
        now = now_ms()
        if left and (not attempt.stop.sigterm_sent or not attempt.stop.kill_at_ms):
            attempt.stop.sigterm_sent = True
            soon = now + min(LEFTOVER_GRACE_MS, attempt.work.grace_ms)
            attempt.stop.kill_at_ms = min(attempt.stop.kill_at_ms or soon, soon)
            processes.send(left, signal.SIGTERM)
            processes.send(left, signal.SIGCONT)
        elif left and now >= attempt.stop.kill_at_ms:
            attempt.group.kill()
            processes.send(left, signal.SIGKILL)
        self._context.loop.after(SCAN_AGAIN_MS, self._end_processes, attempt)

    def _processes_gone(self, attempt: Attempt) -> None:
        attempt.cleaning_up = False
        work = attempt.work
        containers.remove_links_and_mounts(work)
        if (memory_mb := memory_limit_mb(work)) and attempt.group.out_of_memory():
            attempt.details.append(f"killed by the kernel: used more than its {memory_mb} MB")
            if not work.memory_mb:
                attempt.details.append(
                    "it requested no memory, so it got its share of the node; request more with "
                    "--memory"
                )
        self._remove_group(attempt, REMOVE_GROUP_TRIES)
        self._context.log_rotation.check(work)
        # Many jobs save a checkpoint when they are stopped, just before their end.
        ran = attempt.ending is not None and attempt.ending.ran
        if ran and (saved := scratch.new_checkpoint(attempt)):
            self._context.report(saved)
        if not work.epilog or attempt.phase is Phase.OVER:
            self._finish(attempt)
            return
        variables = {**os.environ, **hook_environment(work), **_ending_variables(attempt)}
        launch = self._context.helpers.launch(work.epilog, variables)
        self._context.helpers.run(launch, work.hook_timeout_ms, self._epilog_done, attempt)

    def _epilog_done(self, attempt: Attempt, ok: bool, output: str) -> None:
        if not ok:
            attempt.epilog_failed = output
            attempt.details.append(f"the epilog {attempt.work.epilog[0]!r} failed: {output}")
        self._finish(attempt)

    def _remove_group(self, attempt: Attempt, tries: int) -> None:
        if not attempt.group.remove() and tries > 0:
            self._context.loop.after(REMOVE_GROUP_AGAIN_MS, self._remove_group, attempt, tries - 1)

    def _finish(self, attempt: Attempt) -> None:
        ending = attempt.ending or Ending()
        ran = ending.ran
        details = [ending.detail, *attempt.details]
        if ran and ending.exit_code is None and ending.signal is None and not any(details):
            details = [UNKNOWN if attempt.adopted else NOT_SEEN]
        over = Over(
            allocation_id=attempt.key[0],
            member=attempt.key[1],
            exit_code=ending.exit_code if ran else None,
            signal=ending.signal if ran else None,
            ran=ran,
            at_ms=wall_ms(),
            boot_id=self._context.boot,
            boot_ms=now_ms(),
            run_ms=max(0, attempt.ended_ms - attempt.began_ms) if ran else 0,
            stopped_by=attempt.stopped_by,
            detail="; ".join(dict.fromkeys(filter(None, details))),
            prolog_failed=_one_line(attempt.prolog_failed),
            epilog_failed=_one_line(attempt.epilog_failed),
            image_digest=ending.image_digest,
        )
        self._events.cleanup_finished(attempt, over)


def _engine_tries(attempt: Attempt, client: Ending) -> int:
    """How often to ask an engine how the container ended; 0: for the whole timeout.

    Podman has no server that could come back: what has failed in its client fails again.
    """
    if client.exit_code not in _ENGINE_FAILED:
        return 0
    runner = attempt.runner
    return 1 if isinstance(runner, ContainerRunner) and runner.is_podman else ENGINE_TRIES


def _container_ending(attempt: Attempt, client: Ending, ok: bool, text: str) -> Ending:
    """How the job ended, from the exit of the engine's client and the engine's answer."""
    if attempt.runner is None:
        return client
    if not ok and says_no_container(text):
        if client.exit_code in _ENGINE_FAILED:
            detail = log_rotation.engine_error(attempt.work) or containers.NEVER_MADE
            return Ending(ran=False, detail=detail)
        return Ending(detail=REMOVED_BY_OTHERS)
    if not ok:
        detail = f"{NO_ANSWER}: {text}"
        if client.exit_code is not None:
            detail += f"; its client ended with exit code {client.exit_code}"
        return Ending(detail=detail)
    ending = attempt.runner.ending(attempt.work, text)
    if ending.ran:
        return ending
    return Ending(ran=False, detail=log_rotation.engine_error(attempt.work) or ending.detail)


def _one_line(text: str) -> str:
    """A short form of what a hook has written, for the report."""
    return " ".join(text.split())[:MAX_HOOK_ERROR]


def _ending_variables(attempt: Attempt) -> dict[str, str]:
    """How the job ended, for the epilog."""
    ending = attempt.ending or Ending()
    return {
        "TGPU_EXIT_CODE": "" if ending.exit_code is None else str(ending.exit_code),
        "TGPU_EXIT_SIGNAL": "" if ending.signal is None else str(ending.signal),
        "TGPU_STOPPED_BY": attempt.stopped_by,
    }
