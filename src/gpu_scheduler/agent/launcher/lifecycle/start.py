"""From an order to a running command, at most once.

An attempt goes through prolog, fork, gate, journal record, release. A failure before the release is
reported as `start_failed`: nothing has run. The end of a released child is `main_process_ended`.
Members of a gang wait for each other at the gate, ready up to the exec, and once more until all
their records are on disk. Commands in a session are started by their shim: see `session`.
"""

from __future__ import annotations

import os
import signal

from gpu_scheduler.agent.launcher import log_rotation, processes, scratch
from gpu_scheduler.agent.launcher.context import AttemptEvents, LauncherContext
from gpu_scheduler.agent.launcher.lifecycle.attempt import (
    Attempt,
    Phase,
    hook_environment,
    journal_work,
)
from gpu_scheduler.agent.launcher.lifecycle.session import SessionStarter
from gpu_scheduler.agent.launcher.lifecycle.start_gate import StartGate
from gpu_scheduler.agent.launcher.log_rotation import launcher_log
from gpu_scheduler.agent.launcher_protocol import NOT_BEGUN, Work, in_rootless_container
from gpu_scheduler.agent.runners import rootless
from gpu_scheduler.agent.runners.interface import Command, Ending, Runner
from gpu_scheduler.agent.spawn.child import READY
from gpu_scheduler.agent.spawn.prefork_pool import PreforkedChild
from gpu_scheduler.agent.spawn.spawner import (
    NEVER_RELEASED,
    Launch,
    Spawned,
    read_refusal,
    send_go,
)

KILLED_WAIT_MS = 5_000
"""A killed process is gone by then, unless the kernel cannot end it."""


class Starter:
    """Starts attempts as processes, or hands them to the `SessionStarter`."""

    def __init__(self, context: LauncherContext, gate: StartGate, events: AttemptEvents) -> None:
        self._context = context
        self._gate = gate
        self._events = events
        self._sessions = SessionStarter(context, gate, events)

    def begin(self, attempt: Attempt) -> None:
        """Take the first step. The order is acknowledged when the attempt is on disk, or failed."""
        runner = attempt.runner
        problem = self._find_problem(attempt.work, runner)
        if problem or runner is None:
            attempt.acknowledge_start()
            self._events.start_failed(attempt, problem)
        elif attempt.work.prolog or attempt.waits_for_others:
            attempt.phase = Phase.PROLOG
            record = attempt.add_record("accepted", work=journal_work(attempt.work))
            self._context.journal.append(record, self._run_prolog, attempt)
        else:
            self._spawn(attempt, runner)

    def _find_problem(self, work: Work, runner: Runner | None) -> str:
        """Why this work cannot even be tried; "" if no reason is known."""
        if runner is None:
            known = ", ".join(sorted(self._context.runners))
            return f"there is no runner called {work.runner!r}; known: {known}"
        uid = os.geteuid()
        if uid not in {0, work.uid}:
            return (
                f"cannot run as uid {work.uid}: the launcher runs as uid {uid} and is not root; "
                "run the scheduler as root, or submit as its own user"
            )
        if work.script and not work.scratch_dir:
            return "a script needs a scratch directory"
        return runner.missing(work)

    def _run_prolog(self, attempt: Attempt, error: str) -> None:
        attempt.acknowledge_start()
        if error:
            self._events.start_failed(attempt, error)
            return
        if attempt.phase is not Phase.PROLOG:
            return
        work = attempt.work
        if not work.prolog:
            self._prolog_done(attempt, True, "")
            return
        environment = {**os.environ, **hook_environment(work)}
        launch = self._context.helpers.launch(work.prolog, environment)
        attempt.pid = self._context.helpers.run(
            launch, work.hook_timeout_ms, self._prolog_done, attempt
        )

    def _prolog_done(self, attempt: Attempt, ok: bool, output: str) -> None:
        attempt.pid = 0
        if attempt.stopped_by:
            self._events.start_failed(attempt, "")
        elif not ok:
            attempt.prolog_failed = output
            reason = f"the prolog {attempt.work.prolog[0]!r} failed: {output}"
            self._events.start_failed(attempt, reason)
        elif attempt.runner is not None:
            self._spawn(attempt, attempt.runner)
            if attempt.work.prolog:
                # Collect now: the loop may reap this very child next, and must know it by then.
                self._context.spawner.collect()

    def _spawn(self, attempt: Attempt, runner: Runner) -> None:
        """Prepare scratch directory, control groups and log, and ask for a child at its gate."""
        context, work = self._context, attempt.work
        attempt.phase = Phase.GATE
        log = -1
        preforked: PreforkedChild | None = None
        environment = self._job_environment(work)
        try:
            if work.runner != "container":
                preforked = context.prefork.take(work)
            command = runner.command(work, environment)
            if work.scratch_dir:
                scratch.make(work, {**work.files, **command.files}, context.directories)
            if preforked is not None:
                attempt.group = preforked.group
            elif work.runner != "container" or command.as_user:
                attempt.group = context.cgroups.open(attempt.name, work)
            log = log_rotation.open_log(work)
            launch = self._make_launch(attempt, command, log)
            if command.job:
                self._sessions.listen(attempt, launch)
        except OSError as error:
            if preforked is not None:
                context.prefork.give_back(preforked)
            self._fail_to_prepare(attempt, log, error)
            return
        if preforked is not None:
            if context.spawner.fill(preforked.child, launch):
                self._forked(attempt, command, environment, log, preforked.child)
                return
            # The waiting child has died: fork another one, in control groups of its own.
            context.prefork.give_back(preforked)
            try:
                attempt.group = context.cgroups.open(attempt.name, work)
            except OSError as error:
                self._fail_to_prepare(attempt, log, error)
                return
            launch.joins = attempt.group.join_files
        launch.group = attempt.group.open_directory()
        try:
            context.spawner.begin(launch, self._forked, attempt, command, environment, log)
        finally:
            if launch.group >= 0:
                os.close(launch.group)

    def _job_environment(self, work: Work) -> dict[str, str]:
        """The job's own variables, and those that only the launcher knows."""
        environment = dict(work.environment)
        environment["TGPU_ALLOCATION_ID"] = work.allocation_id
        environment["TGPU_MEMBER"] = str(work.member)
        environment["TGPU_LAUNCHER"] = self._context.mark
        if work.scratch_dir:
            environment["TGPU_STOP_FILE"] = f"{work.scratch_dir}/{scratch.STOP_FILE}"
            environment["TGPU_CHECKPOINT_FILE"] = f"{work.scratch_dir}/{scratch.CHECKPOINT_FILE}"
        return environment

    def _make_launch(self, attempt: Attempt, command: Command, log: int) -> Launch:
        """What the child is to execute, and with which rights and limits."""
        work = attempt.work
        launch = Launch(
            argv=command.argv,
            environment=command.environment,
            gid=work.gid,
            user=work.user,
            log=log,
            joins=attempt.group.join_files,
            python=command.python,
            stdin=command.stdin,
            reachable=command.reachable,
            root=command.root,
            stage=command.stage,
            log_of_user=work.log_path if work.log_of_user else "",
            log_umask=work.umask,
        )
        if in_rootless_container(work):
            rootless.make_run_link(work)
        elif work.runner == "container":
            launch.environment = {**launch.environment, "TGPU_HELPER": self._context.mark}
            launch.reaching_uid = work.uid
        if command.as_user:
            launch.uid = work.uid
            launch.umask = work.umask
            launch.workdir = command.workdir or work.workdir or "/"
            launch.rlimits = self._context.cgroups.rlimits(work)
            launch.cpus = work.cpus
        launch.says_ready = attempt.waits_for_others and not command.job
        return launch

    def _fail_to_prepare(self, attempt: Attempt, log: int, error: OSError) -> None:
        if log >= 0:
            os.close(log)
        self._sessions.stop_listening(attempt)
        attempt.acknowledge_start()
        self._events.start_failed(attempt, f"cannot prepare the job: {error}")

    def _forked(
        self,
        attempt: Attempt,
        command: Command,
        environment: dict[str, str],
        log: int,
        child: Spawned | OSError,
    ) -> None:
        if isinstance(child, OSError):
            self._fail_to_prepare(attempt, log, child)
            return
        attempt.start.gate = child.gate
        if command.job:
            self._sessions.open(attempt, child.pid, command.job, environment, log)
            return
        if log >= 0:
            os.close(log)
        attempt.pid = child.pid
        self._gate.timeouts.begin(attempt, attempt.work.start_timeout_ms, self._start_timed_out)
        self._context.loop.at_exit(child.pid, self._child_ended, attempt)
        if attempt.waits_for_others:
            self._context.loop.add(child.gate.fileno(), self._on_ready, attempt)
        else:
            self._gate.record_start(attempt, self._release)

    def _on_ready(self, attempt: Attempt) -> None:
        """A member of a gang is ready at its gate, or writes why it cannot be, and ends."""
        message = None if attempt.start.gate is None else read_refusal(attempt.start.gate)
        if attempt.start.gate is None or message is None:
            return
        self._context.loop.drop(attempt.start.gate.fileno())
        if message == READY.decode():
            self._gate.wait_for_gang(attempt, self._gang_ready)
        else:
            attempt.details.append(message)
            self._gate.close(attempt)

    def _gang_ready(self, attempt: Attempt, reason: str) -> None:
        if reason or attempt.stopped_by:
            self._release(attempt, reason)
        else:
            self._gate.record_member(attempt, self._release)

    def _release(self, attempt: Attempt, problem: str) -> None:
        """Let the child execute the command, unless there is a problem."""
        attempt.acknowledge_start()
        gate = attempt.start.gate
        if gate is None:
            return
        if problem or attempt.stopped_by:
            attempt.details.append(problem)
            self._gate.close(attempt)
            return
        attempt.start.released = True
        if attempt.waits_for_others:
            self._gate.timeouts.begin(attempt, attempt.work.start_timeout_ms, self._start_timed_out)
        send_go(gate, attempt.start.commit_environment)
        self._context.loop.add(gate.fileno(), self._read_gate, attempt)

    def _read_gate(self, attempt: Attempt) -> None:
        """The exec closes the gate; else the child writes why it failed, and ends."""
        if attempt.start.gate is None:
            return
        message = read_refusal(attempt.start.gate)
        if message is None:
            return
        self._gate.close(attempt)
        if not attempt.start.released:
            message = message.removeprefix(READY.decode())
        if message:
            if message != NEVER_RELEASED or not attempt.start.timed_out:
                attempt.details.append(message)
            attempt.start.released = False
        elif attempt.phase is Phase.GATE and attempt.start.released:
            self._gate.set_running(attempt, attempt.pid)

    def _start_timed_out(self, attempt: Attempt) -> None:
        """It hangs on its way to the command: kill it.

        The others of its gang wait for it no longer. It is over only when its process is gone, as a
        process that the kernel cannot end may hold devices.
        """
        if attempt.start.released:
            self._read_gate(attempt)
        if attempt.phase is not Phase.GATE:
            return
        attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        attempt.start.timed_out = True
        seconds = attempt.work.start_timeout_ms / 1000
        hang = _find_hang(attempt)
        attempt.details.append(f"it was not ready to run within {seconds:g} s, and hung {hang}")
        launcher_log.warning(f"{attempt.name}: {attempt.details[-1]}")
        processes.send([attempt.pid], signal.SIGKILL)
        self._context.loop.after(KILLED_WAIT_MS, self._warn_if_unkillable, attempt)
        self._gate.member_failed(attempt)

    def _warn_if_unkillable(self, attempt: Attempt) -> None:
        if attempt.ending is None:
            note = f"process {attempt.pid} cannot be killed; its devices are kept until it is gone"
            launcher_log.warning(f"{attempt.name}: {note}")
            if not attempt.work.log_of_user:
                log_rotation.append_note(attempt.work, f"tgpu: {attempt.details[-1]}; {note}\n")

    def _child_ended(self, attempt: Attempt, status: int) -> None:
        if attempt.start.gate is not None:
            self._read_gate(attempt)
        self._gate.close(attempt)
        if not attempt.start.released:
            attempt.pid = 0
            self._events.start_failed(attempt, "")
            return
        code = os.waitstatus_to_exitcode(status)
        ending = Ending(exit_code=code) if code >= 0 else Ending(signal=-code)
        self._events.main_process_ended(attempt, ending)


def _find_hang(attempt: Attempt) -> str:
    """Where the child hangs, judged by what it has done so far; nothing read here can hang."""
    work, pid = attempt.work, attempt.pid
    if processes.is_stopped(pid):
        return "because its process was stopped by a signal"
    output = f"the output file {work.log_path!r}" if work.log_of_user else ""
    if work.runner == "container" and not in_rootless_container(work):
        root = work.image if work.image.startswith("rootfs:") else ""
        places = [*(source for source, _, _ in work.mounts), root, output]
        return "over one of these: " + ", ".join(filter(None, places))
    if processes.user_of(pid) != work.uid:
        return f"while it looked up the groups of user {work.user or work.uid}"
    if output and _read_link(pid, "fd/1") != work.log_path:
        return f"over {output}"
    if _read_link(pid, "cwd") != os.path.normpath(work.workdir or "/"):
        return f"over the working directory {work.workdir!r}"
    return f"over the program {work.argv[0]!r}" if work.argv else "over its script"


def _read_link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
