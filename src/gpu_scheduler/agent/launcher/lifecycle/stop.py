"""Stopping a job: write the stop reason, warn it, send SIGTERM, send SIGKILL until it is gone.

The stop reason is in its file before any signal is sent. A warning goes to the job's process group;
SIGTERM and SIGKILL go to every process of the job, also to those that have detached. Nothing is
reported from here: the end of the main process is seen by the event loop.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes, scratch
from gpu_scheduler.agent.launcher.context import LauncherContext, ignore_result
from gpu_scheduler.agent.launcher.lifecycle import containers
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.loop import now_ms

TIMEOUT = "timeout"
WARNED_REASONS = frozenset({"preempted", "gpu_memory", "gpu_idle"})
"""A job that is stopped for one of these could not know when, and is warned first."""
KILL_RETRY_MS = 100
ENGINE_RETRY_MS = 500
DIRECT_AFTER_MS = 5_000
"""If the engine has not delivered a signal by then, the launcher sends it directly."""
DIRECT_RETRY_MS = 500
SHIM_GRACE_MS = 2_000
GATE_GRACE_MS = 2_000
"""A child needs only a moment from its gate to its command, unless something hangs."""


class Stopper:
    """Warns and stops attempts whose command has begun."""

    def __init__(self, context: LauncherContext) -> None:
        self._context = context

    def watch_limits(self, attempt: Attempt) -> None:
        """Set the timers of the time limit, which need neither agent nor server."""
        work = attempt.work
        containers.watch_creation(self._context, attempt)
        containers.watch_phase(self._context, attempt)
        if not work.limit_ms:
            return
        left_ms = attempt.began_ms + work.limit_ms - now_ms()
        if processes.signal_number(work.warn_signal) and work.warn_before_ms:
            self._after(attempt, left_ms - work.warn_before_ms, self._warn, TIMEOUT)
        self._after(attempt, left_ms, self.stop, TIMEOUT, None)

    def stop(self, attempt: Attempt, reason: str, grace_ms: int | None) -> None:
        """Begin to stop, or shorten a grace period that has begun. Nothing makes it longer."""
        if attempt.phase is not Phase.RUNNING and not attempt.cleaning_up:
            return
        grace = attempt.work.grace_ms if grace_ms is None else grace_ms
        warning_ms = 0
        if not attempt.stopped_by:
            attempt.stopped_by = reason
            record = attempt.add_record("stop", why=reason)
            self._context.journal.append(record)
            scratch.write_stop_reason(attempt.work, reason)
            warning_ms = _warning_ms(attempt, reason, grace_ms)
        kill_at_ms = now_ms() + warning_ms + grace
        if attempt.stop.kill_at_ms and attempt.stop.kill_at_ms <= kill_at_ms:
            return
        attempt.stop.kill_at_ms = kill_at_ms
        attempt.cancel_timers()
        if warning_ms:
            self._warn(attempt, reason)
            self._after(attempt, warning_ms, self._terminate)
        else:
            self._terminate(attempt)
        self._after(attempt, warning_ms + grace, self._kill)

    def end_at_gate(self, attempt: Attempt, grace_ms: int | None) -> None:
        """Kill a child that hangs on its way to the command, as over a dead file server."""
        grace = attempt.work.grace_ms if grace_ms is None else grace_ms
        self._after(attempt, min(grace, GATE_GRACE_MS), self._kill_at_gate)

    def _kill_at_gate(self, attempt: Attempt) -> None:
        if attempt.phase is Phase.GATE:
            containers.kill_main(self._context, attempt)

    def _after(
        self, attempt: Attempt, wait_ms: int, action: Callable[..., None], *arguments: object
    ) -> None:
        attempt.add_timer(self._context.loop.after(wait_ms, action, attempt, *arguments))

    def _warn(self, attempt: Attempt, reason: str) -> None:
        if attempt.phase is not Phase.RUNNING:
            return
        attempt.stop.warned = True
        scratch.write_stop_reason(attempt.work, reason)
        runner, number = attempt.runner, processes.signal_number(attempt.work.warn_signal)
        name = signal.Signals(number).name
        if runner is not None and (command := runner.signal_command(attempt.work, name)):
            self._context.helpers.run_engine(command, ignore_result)
            return
        leader = 0 if attempt.in_rootless_container else _group_leader(attempt)
        if leader:
            processes.send_to_group(leader, number)
        else:
            processes.send(self._job_pids(attempt), number)

    def _terminate(self, attempt: Attempt) -> None:
        """SIGTERM to everything, then SIGCONT: a stopped process handles it only when continued."""
        if attempt.over is not None or attempt.stop.sigterm_sent:
            return
        attempt.stop.sigterm_sent = True
        self._send(attempt, signal.SIGTERM)
        if attempt.has_engine:
            half_ms = max(0, attempt.stop.kill_at_ms - now_ms()) // 2
            self._after(attempt, min(DIRECT_AFTER_MS, half_ms), self._terminate_directly)
        if attempt.runner is None or not attempt.runner.signal_command(attempt.work, "CONT"):
            targets = self._job_pids(attempt)
            if attempt.is_session:
                # An interactive shell ignores SIGTERM, and ends when its terminal hangs up.
                shells = [pid for pid in targets if processes.is_shell_at_prompt(pid)]
                processes.send(shells, signal.SIGHUP)
            processes.send(targets, signal.SIGCONT)

    def _kill(self, attempt: Attempt) -> None:
        """SIGKILL to everything, repeated until the main process is gone."""
        if attempt.over is not None or (attempt.ending is not None and not attempt.cleaning_up):
            return
        late = now_ms() - attempt.stop.kill_at_ms > SHIM_GRACE_MS
        if attempt.ending is not None or not attempt.has_reporter or late:
            attempt.group.kill()
        attempt.stop.sigkill_sent = True
        self._send(attempt, signal.SIGKILL, with_shim=late)
        if attempt.ending is None and not attempt.has_engine:
            self._after(attempt, KILL_RETRY_MS, self._kill)
        elif attempt.ending is None:
            wait_ms = min(DIRECT_AFTER_MS, attempt.work.engine_timeout_ms)
            self._after(attempt, wait_ms, self._kill_directly)

    def _terminate_directly(self, attempt: Attempt) -> None:
        """An engine that has not delivered SIGTERM by now may never do so."""
        if attempt.ending is None and not attempt.stop.delivered_signal:
            processes.send(self._context.tracker.in_container(attempt), signal.SIGTERM)

    def _kill_directly(self, attempt: Attempt) -> None:
        """Kill all of the container without the engine, and later the client that waits for it."""
        if attempt.ending is not None:
            return
        processes.send(self._context.tracker.in_container(attempt), signal.SIGKILL)
        if now_ms() - attempt.stop.kill_at_ms >= containers.call_timeout_ms(attempt):
            containers.kill_main(self._context, attempt)
        self._after(attempt, DIRECT_RETRY_MS, self._kill_directly)

    def _send(self, attempt: Attempt, number: signal.Signals, with_shim: bool = False) -> None:
        runner = attempt.runner
        if attempt.ending is None and runner is not None:
            command = runner.signal_command(attempt.work, number.name.removeprefix("SIG"))
            if command:
                self._send_by_engine(attempt, number, command)
                return
        pids = self._context.tracker.tree(attempt) if with_shim else self._job_pids(attempt)
        # The command itself first: else it may see its child die, and exit with a code of its own.
        main = {attempt.pid, attempt.job_pid}
        processes.send(sorted(pids, key=lambda pid: pid not in main), number)

    def _send_by_engine(
        self, attempt: Attempt, number: signal.Signals, command: tuple[str, ...]
    ) -> None:
        """Repeat until it is delivered: while the engine creates the container, signals are lost.

        SIGKILL is repeated even then, until the container has ended.
        """
        if attempt.ending is not None or attempt.stop.sigkill_sent != (number is signal.SIGKILL):
            return
        self._context.helpers.run_engine(
            command,
            self._engine_answered,
            attempt,
            number,
            command,
            timeout_ms=containers.call_timeout_ms(attempt),
        )

    def _engine_answered(
        self,
        attempt: Attempt,
        number: signal.Signals,
        command: tuple[str, ...],
        ok: bool,
        output: str,
    ) -> None:
        del output
        attempt.stop.delivered_signal = number if ok else attempt.stop.delivered_signal
        if not ok or number is signal.SIGKILL:
            self._context.loop.after(
                ENGINE_RETRY_MS, self._send_by_engine, attempt, number, command
            )

    def _job_pids(self, attempt: Attempt) -> set[int]:
        """The whole job, but not what reports how the job ended while that has not happened.

        In a session that is the shim with its terminal. In a container of the job's user it is
        podman: only the first process inside is signalled, which passes the signal on; its end ends
        all processes of the container.
        """
        tree = self._context.tracker.tree(attempt)
        if attempt.in_rootless_container and attempt.ending is None:
            return set(filter(processes.is_first_in_namespace, tree)) or tree
        if attempt.is_session and attempt.ending is None:
            tree -= self._context.tracker.ancestors(attempt.pid)
        return tree


def _warning_ms(attempt: Attempt, reason: str, grace_ms: int | None) -> int:
    """How long a job is warned before SIGTERM: at most as long as its grace period."""
    work = attempt.work
    if reason not in WARNED_REASONS or grace_ms is not None or attempt.stop.warned:
        return 0
    if not processes.signal_number(work.warn_signal):
        return 0
    return min(work.warn_before_ms, work.grace_ms)


def _group_leader(attempt: Attempt) -> int:
    """The process group of the job; 0 if it is unknown, or its number was reused.

    Never that of the shim: a warning signal would kill the shim, and with it the job.
    """
    if attempt.job_ticks and processes.start_ticks(attempt.job_pid) != attempt.job_ticks:
        return 0
    if attempt.is_session and attempt.job_pid == attempt.pid:
        return 0
    return attempt.job_pid or attempt.pid
