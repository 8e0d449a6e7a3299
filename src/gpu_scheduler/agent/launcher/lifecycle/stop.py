"""Stopping a job: tell it why, warn it, ask it, kill it, until nothing of it is left.

The stop reason is in its file before any signal. A warning goes to the job's process group; SIGTERM
and SIGKILL go to every process of the job, also to what has detached itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes, scratch
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle import containers
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.loop import now_ms

TIMEOUT = "timeout"
WARNED_BEFORE = frozenset({"preempted", "gpu_memory", "gpu_idle"})
"""A job that is stopped for one of these did not know when."""
KILL_AGAIN_MS = 100
ENGINE_AGAIN_MS = 500
DIRECTLY_MS = 5_000
"""So long an engine has to pass a signal on, before it is sent without it."""
DIRECTLY_AGAIN_MS = 500
SHIM_GRACE_MS = 2_000
GATE_GRACE_MS = 2_000
"""From its gate to its command a child needs a moment, unless something hangs."""
_Act = Callable[[Attempt], None]
_NAMES = {signal.SIGTERM: "TERM", signal.SIGKILL: "KILL"}


class Stopper:
    """Warns and stops attempts whose command has begun."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    def arm(self, attempt: Attempt) -> None:
        """Set the alarm of the time limit. It needs neither agent nor server."""
        work = attempt.work
        containers.watch_begin(self._kit, attempt)
        if not work.limit_ms:
            return
        left_ms = attempt.began_ms + work.limit_ms - now_ms()
        if processes.signal_number(work.warn_signal) and work.warn_before_ms:
            warn_ms = left_ms - work.warn_before_ms
            attempt.keep(self._kit.loop.after(warn_ms, lambda: self._warn(attempt, TIMEOUT)))
        attempt.keep(self._kit.loop.after(left_ms, lambda: self.stop(attempt, TIMEOUT, None)))

    def stop(self, attempt: Attempt, why: str, grace_ms: int | None) -> None:
        """Begin to stop, or shorten a grace that is under way. Nothing makes it longer."""
        if attempt.phase is not Phase.RUNNING and not attempt.closing:
            return
        grace = attempt.work.grace_ms if grace_ms is None else grace_ms
        first = not attempt.stopped_by
        if first:
            attempt.stopped_by = why
            record = attempt.record("stop", why=why)
            self._kit.journal.append(record, lambda _: None)
            scratch.write_stop_reason(attempt.work, why)
        warning_ms = self._warning_ms(attempt, why, grace_ms) if first else 0
        kill_at_ms = now_ms() + warning_ms + grace
        if attempt.kill_at_ms and attempt.kill_at_ms <= kill_at_ms:
            return
        attempt.kill_at_ms = kill_at_ms
        attempt.cancel_timers()
        if warning_ms:
            self._warn(attempt, why)
            self._later(attempt, warning_ms, self.ask)
        else:
            self.ask(attempt)
        self._later(attempt, warning_ms + grace, self.kill)

    def end_at_gate(self, attempt: Attempt, grace_ms: int | None) -> None:
        """End what is about to begin, if that hangs, as in a directory whose server is gone."""
        grace = attempt.work.grace_ms if grace_ms is None else grace_ms
        self._later(attempt, min(grace, GATE_GRACE_MS), self._kill_at_gate)

    def _kill_at_gate(self, attempt: Attempt) -> None:
        if attempt.phase is not Phase.GATE:
            return
        if attempt.pidfd >= 0:
            processes.kill_exactly(attempt.pidfd)
        elif attempt.pid in self._kit.loop.known_children:
            processes.send([attempt.pid], signal.SIGKILL)

    def _warning_ms(self, attempt: Attempt, why: str, grace_ms: int | None) -> int:
        """Who is preempted, or the like, is warned for a time, at most as long as its grace."""
        work = attempt.work
        if why not in WARNED_BEFORE or grace_ms is not None or attempt.warned:
            return 0
        if not processes.signal_number(work.warn_signal):
            return 0
        return min(work.warn_before_ms, work.grace_ms)

    def _later(self, attempt: Attempt, wait_ms: int, act: _Act) -> None:
        attempt.keep(self._kit.loop.after(wait_ms, lambda: act(attempt)))

    def _warn(self, attempt: Attempt, why: str) -> None:
        if attempt.phase is not Phase.RUNNING:
            return
        attempt.warned = True
        scratch.write_stop_reason(attempt.work, why)
        runner, number = attempt.runner, processes.signal_number(attempt.work.warn_signal)
        name = signal.Signals(number).name
        if runner is not None and (command := runner.signal_command(attempt.work, name)):
            self._kit.tell_engine(command, lambda *_: None)
            return
        leader = _leader(attempt)
        if leader:
            processes.send_to_group(leader, number)
        else:
            processes.send(self._targets(attempt), number)

    def ask(self, attempt: Attempt) -> None:
        """SIGTERM to everything; what is stopped has to go on to hear it."""
        if attempt.over is not None or attempt.termed:
            return
        attempt.termed = True
        self._send(attempt, signal.SIGTERM)
        if attempt.work.runner == "container":
            half_ms = max(0, attempt.kill_at_ms - now_ms()) // 2
            self._later(attempt, min(DIRECTLY_MS, half_ms), self._ask_directly)
        if attempt.runner is None or not attempt.runner.signal_command(attempt.work, "CONT"):
            targets = self._targets(attempt)
            if attempt.is_session:
                # It ignores SIGTERM, and goes when its terminal does.
                shells = [pid for pid in targets if processes.is_shell_at_prompt(pid)]
                processes.send(shells, signal.SIGHUP)
            processes.send(targets, signal.SIGCONT)

    def kill(self, attempt: Attempt) -> None:
        """SIGKILL to everything, again and again until the end is seen."""
        if attempt.over is not None or (attempt.ending is not None and not attempt.closing):
            return
        late = now_ms() - attempt.kill_at_ms > SHIM_GRACE_MS
        if attempt.ending is not None or not attempt.is_session or late:
            attempt.group.kill()
        attempt.killed = True
        self._send(attempt, signal.SIGKILL, everything=late)
        if attempt.ending is None and attempt.work.runner != "container":
            self._later(attempt, KILL_AGAIN_MS, self.kill)
        elif attempt.ending is None:
            wait_ms = min(DIRECTLY_MS, attempt.work.engine_timeout_ms)
            self._later(attempt, wait_ms, self._kill_directly)

    def _ask_directly(self, attempt: Attempt) -> None:
        """An engine that has not passed the signal on by now may never do so."""
        if attempt.ending is None and not attempt.heard:
            processes.send(self._kit.census.in_container(attempt), signal.SIGTERM)

    def _kill_directly(self, attempt: Attempt) -> None:
        """The same, to the end: all of the container, and later the client that waits for it."""
        if attempt.ending is not None:
            return
        processes.send(self._kit.census.in_container(attempt), signal.SIGKILL)
        if now_ms() - attempt.kill_at_ms >= containers.patience_ms(attempt):
            containers.kill_client(self._kit, attempt)
        self._later(attempt, DIRECTLY_AGAIN_MS, self._kill_directly)

    def _send(self, attempt: Attempt, number: signal.Signals, everything: bool = False) -> None:
        runner = attempt.runner
        if attempt.ending is None and runner is not None:
            command = runner.signal_command(attempt.work, _NAMES[number])
            if command:
                self._tell_until_heard(attempt, number, command)
                return
        found = self._kit.census.tree(attempt) if everything else self._targets(attempt)
        # The command itself first: else it may see its child die, and end by a code of its own.
        main = {attempt.pid, attempt.job_pid}
        processes.send(sorted(found, key=lambda pid: pid not in main), number)

    def _tell_until_heard(
        self, attempt: Attempt, number: signal.Signals, command: tuple[str, ...]
    ) -> None:
        """An engine may still be making the container; until it is there, a signal is lost."""

        def again() -> None:
            if attempt.ending is None and attempt.killed == (number is signal.SIGKILL):
                self._tell_until_heard(attempt, number, command)

        def done(well: bool, output: str) -> None:
            del output
            attempt.heard = number if well else attempt.heard
            if not well or number is signal.SIGKILL:
                self._kit.loop.after(ENGINE_AGAIN_MS, again)

        self._kit.tell_engine(command, done, containers.patience_ms(attempt))

    def _targets(self, attempt: Attempt) -> set[int]:
        """The whole job. In a session the shim and the terminal stay, to tell how the job ended."""
        tree = self._kit.census.tree(attempt)
        if attempt.is_session and attempt.ending is None:
            tree -= self._kit.census.ancestors(attempt.pid)
        return tree


def _leader(attempt: Attempt) -> int:
    """The process group of the job; 0 if that is not known, or may be that of another by now.

    Never that of the shim: what only warns a job would kill it, and with it the job.
    """
    if attempt.job_ticks and processes.start_ticks(attempt.job_pid) != attempt.job_ticks:
        return 0
    if attempt.is_session and attempt.job_pid == attempt.pid:
        return 0
    return attempt.job_pid or attempt.pid
