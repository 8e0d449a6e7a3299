"""From an order to a running command, at most once.

Prolog, then the child at its gate, then the record on disk, then go. Whatever goes wrong before go
ends in `refuse`: nothing has run, and the reason is told. Members of a gang wait for each other at
the gate, ready up to the command itself, and once more when all records are on disk. What runs in
a session is started by its shim: see `sessions`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from gpu_scheduler.agent.launcher import logs, processes, scratch
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import (
    Attempt,
    Phase,
    hook_environment,
    kept_work,
)
from gpu_scheduler.agent.launcher.lifecycle.gang import Commits, Gangs
from gpu_scheduler.agent.launcher.lifecycle.launch_spec import environment_of, launch_of, problem_of
from gpu_scheduler.agent.launcher.lifecycle.session import SessionStarter
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.loop import Loop, Timer, now_ms, wall_ms
from gpu_scheduler.agent.launcher.messages import Key
from gpu_scheduler.agent.runners.interface import Command, Ending
from gpu_scheduler.agent.spawn.child import READY
from gpu_scheduler.agent.spawn.prefork import Seat
from gpu_scheduler.agent.spawn.spawner import NEVER_WENT, Launch, Spawned, refusal, say_go
from gpu_scheduler.agent.work import NOT_BEGUN, Began, Report

# --- How long a child may take from its fork, or from the word to go, until it is the command.
#
# Attempts come in when their time begins and leave when they are as far; who is late is told of
# once.
# One timer serves all of them: most are gone before it rings.


class StartTimes:
    """Who is on the way to its command, and until when."""

    def __init__(self, loop: Loop, late: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._late = late
        self._due: dict[Key, tuple[int, Attempt]] = {}
        self._timer: Timer | None = None

    def begin(self, attempt: Attempt, wait_ms: int) -> None:
        """It has so much time from now on."""
        due_ms = now_ms() + wait_ms
        self._due[attempt.key] = (due_ms, attempt)
        if self._timer is None or due_ms < self._timer.due_ms:
            self._set(due_ms)

    def leave(self, attempt: Attempt) -> None:
        """It is as far, or at its end."""
        self._due.pop(attempt.key, None)

    def _set(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(due_ms - now_ms(), self._look)

    def _look(self) -> None:
        self._timer = None
        now = now_ms()
        late = [attempt for due_ms, attempt in self._due.values() if due_ms <= now]
        for attempt in late:
            self.leave(attempt)
            self._loop.call(self._late, attempt)
        if self._due:
            self._set(min(due_ms for due_ms, _ in self._due.values()))


def waits_for_others_ms(attempt: Attempt) -> int:
    """By then other members on this node are there, or have been given up themselves."""
    work = attempt.work
    return 2 * work.start_timeout_ms + (work.hook_timeout_ms if work.prolog else 0)


def too_late(attempt: Attempt) -> str:
    """That it did not become its command in time, and over what."""
    seconds = attempt.work.start_timeout_ms / 1000
    return f"it was not ready to run within {seconds:g} s, and hung {_over_what(attempt)}"


def _over_what(attempt: Attempt) -> str:
    """By what it has done so far; none of these looks can hang."""
    work, pid = attempt.work, attempt.pid
    if processes.is_stopped(pid):
        return "as somebody has stopped its process"
    output = f"the output file {work.log_path!r}" if work.log_of_user else ""
    if work.runner == "container":
        root = work.image if work.image.startswith("rootfs:") else ""
        places = [*(source for source, _, _ in work.mounts), root, output]
        return "over one of these: " + ", ".join(filter(None, places))
    if processes.user_of(pid) != work.uid:
        return f"while it looked up the groups of user {work.user or work.uid}"
    if output and _link(pid, "fd/1") != work.log_path:
        return f"over {output}"
    if _link(pid, "cwd") != os.path.normpath(work.workdir or "/"):
        return f"over the working directory {work.workdir!r}"
    return f"over the program {work.argv[0]!r}" if work.argv else "over its script"


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


# --- From an order to a running command, at most once.

GONE_MS = 5_000
"""A process that was killed is gone by then, unless the kernel does not let it go."""
Refuse = Callable[[Attempt, str], None]
Ended = Callable[[Attempt, Ending], None]
Ready = Callable[[Attempt], None]


class Starter:
    """Brings attempts to life. `ended` is called once for each that has begun, `refuse` else."""

    def __init__(self, kit: Kit, refuse: Refuse, ended: Ended, ready: Ready) -> None:
        self._kit = kit
        self._refuse = refuse
        self._ended = ended
        self._ready = ready
        self.gangs = Gangs(kit.attempts, kit.loop.call)
        self.commits = Commits(kit.attempts, kit.loop, self._report)
        self.times = StartTimes(kit.loop, self._late)
        self._sessions = SessionStarter(kit, refuse, self)

    def _report(self, report: Report) -> None:
        self._kit.report(report)

    def begin(self, attempt: Attempt, recorded: Callable[[str], None]) -> None:
        """Take the first step. `recorded` is called when the attempt is on disk, or over."""
        problem = problem_of(self._kit, attempt)
        if problem:
            recorded("")
            self._refuse(attempt, problem)
        elif attempt.work.prolog or attempt.waits_at_gate:
            attempt.phase = Phase.PROLOG
            record = attempt.record("accepted", work=kept_work(attempt.work))
            self._kit.journal.append(record, lambda bad: self._run_prolog(attempt, bad, recorded))
        else:
            self._spawn(attempt, recorded)

    def _run_prolog(self, attempt: Attempt, bad: str, recorded: Callable[[str], None]) -> None:
        recorded("")
        if bad:
            self._refuse(attempt, bad)
            return
        if attempt.phase is not Phase.PROLOG:
            return
        work = attempt.work
        if not work.prolog:
            self._spawn(attempt, lambda _: None)
            return
        launch = self._kit.helper_launch(work.prolog, {**os.environ, **hook_environment(work)})

        def done(well: bool, output: str) -> None:
            attempt.pid = 0
            if attempt.stopped_by:
                self._refuse(attempt, "")
            elif not well:
                attempt.prolog_failed = output
                self._refuse(attempt, f"the prolog {work.prolog[0]!r} failed: {output}")
            else:
                self._spawn(attempt, lambda _: None)
                # Before the next child is buried: it could be this one.
                self._kit.spawner.collect()

        attempt.pid = self._kit.errands.run(launch, work.hook_timeout_ms, done)

    def _spawn(self, attempt: Attempt, recorded: Callable[[str], None]) -> None:
        log = -1
        attempt.phase = Phase.GATE
        seat: Seat | None = None
        try:
            if attempt.work.runner != "container":
                seat = self._kit.seats.take(attempt.work)
            command = self._prepare(attempt, seat)
            log = logs.open_log(attempt.work)
            launch = launch_of(self._kit, attempt, command, log)
            if command.job:
                self._sessions.listen(attempt, launch)
        except OSError as error:
            if seat is not None:
                self._kit.seats.give_back(seat)
            self._cannot_prepare(attempt, log, error, recorded)
            return

        def forked(child: Spawned | OSError) -> None:
            self._forked(attempt, command, log, child, recorded)

        if seat is not None and self._kit.spawner.fill(seat.child, launch):
            forked(seat.child)
            return
        if seat is not None and not self._has_own_group(attempt, launch, seat, forked):
            return
        launch.group = attempt.group.entrance()
        try:
            self._kit.spawner.begin(launch, forked)
        finally:
            if launch.group >= 0:
                os.close(launch.group)

    def _has_own_group(
        self, attempt: Attempt, launch: Launch, seat: Seat, forked: Callable[[OSError], None]
    ) -> bool:
        """The child that waited was gone when the job came: another one is forked, in new groups.

        Those of the seat go as soon as its child has been buried.
        """
        self._kit.seats.give_back(seat)
        try:
            attempt.group = self._kit.limits.open(attempt.name, attempt.work)
        except OSError as error:
            forked(error)
            return False
        launch.joins = attempt.group.join_files
        return True

    def _cannot_prepare(
        self, attempt: Attempt, log: int, error: OSError, recorded: Callable[[str], None]
    ) -> None:
        if log >= 0:
            os.close(log)
        self._sessions.stop_listening(attempt)
        recorded("")
        self._refuse(attempt, f"cannot prepare the job: {error}")

    def _forked(
        self,
        attempt: Attempt,
        command: Command,
        log: int,
        child: Spawned | OSError,
        recorded: Callable[[str], None],
    ) -> None:
        if isinstance(child, OSError):
            self._cannot_prepare(attempt, log, child, recorded)
            return
        attempt.gate = child.gate
        if command.job:
            self._sessions.open(attempt, child.pid, command, log, recorded)
            return
        if log >= 0:
            os.close(log)
        attempt.pid = child.pid
        self.times.begin(attempt, attempt.work.start_timeout_ms)
        self._kit.loop.at_exit(child.pid, lambda status: self._child_ended(attempt, status))
        if attempt.waits_at_gate:
            self._kit.loop.add(child.gate.fileno(), lambda: self._gate_answers(attempt))
        else:
            self.record(attempt, lambda bad: self._go(attempt, bad, recorded))

    def _gate_answers(self, attempt: Attempt) -> None:
        """A member of a gang is ready, or says why it cannot be, and ends by itself."""
        said = None if attempt.gate is None else refusal(attempt.gate)
        if attempt.gate is None or said is None:
            return
        self._kit.loop.drop(attempt.gate.fileno())
        if said == READY.decode():
            self.meet(attempt, lambda why: self._all_ready(attempt, why))
        else:
            attempt.details.append(said)
            self.close_gate(attempt)

    def meet(self, attempt: Attempt, step: Callable[[str], None]) -> None:
        """Wait for the members on this node, and for the commit if there are others elsewhere."""

        def all_here(why: str) -> None:
            self.times.leave(attempt)
            if why:
                step(why)
            else:
                self.commits.wait(attempt, step)

        self.times.begin(attempt, waits_for_others_ms(attempt))
        self.gangs.meet(attempt, all_here)

    def _all_ready(self, attempt: Attempt, why: str) -> None:
        def go(bad: str) -> None:
            self._go(attempt, bad, lambda _: None)

        if why or attempt.stopped_by:
            go(why)
        else:
            self.record(attempt, lambda bad: self.recorded_member(attempt, bad, go))

    def recorded_member(self, attempt: Attempt, bad: str, go: Callable[[str], None]) -> None:
        """After a commit nobody waits any more; without one, members wait for all records."""
        if bad or attempt.committed:
            go(bad)
        else:
            self.gangs.meet(attempt, go)

    def _prepare(self, attempt: Attempt, seat: Seat | None) -> Command:
        """Scratch directory, files and control group."""
        work, runner = attempt.work, attempt.runner
        if runner is None:
            raise OSError("no runner")
        command = runner.command(work, environment_of(self._kit, work))
        if work.scratch_dir:
            scratch.make(work, {**work.files, **command.files}, self._kit.spares)
        if seat is not None:
            attempt.group = seat.group
        elif work.runner != "container":
            attempt.group = self._kit.limits.open(attempt.name, work)
        return command

    def record(self, attempt: Attempt, done: Callable[[str], None]) -> None:
        """Who runs, known by pid, start time and boot: enough to find it again."""
        attempt.ticks = processes.start_ticks(attempt.pid)
        attempt.began_ms = now_ms()
        attempt.began_wall_ms = wall_ms()
        attempt.records.clear()
        record = attempt.record(
            "began",
            work=kept_work(attempt.work),
            pid=attempt.pid,
            ticks=attempt.ticks,
            boot=self._kit.boot,
            at_ms=attempt.began_wall_ms,
            boot_ms=attempt.began_ms,
            groups=attempt.group.paths,
            memory_group=attempt.group.memory_path,
        )
        self._kit.leases.begin(attempt, self._kit.boot)
        self._kit.journal.append(record, done)

    def _go(self, attempt: Attempt, bad: str, recorded: Callable[[str], None]) -> None:
        recorded("")
        gate = attempt.gate
        if gate is None:
            return
        if bad or attempt.stopped_by:
            attempt.details.append(bad)
            self.close_gate(attempt)
            return
        attempt.said_go = True
        if attempt.waits_at_gate:
            self.times.begin(attempt, attempt.work.start_timeout_ms)
        say_go(gate, attempt.late_environment)
        self._kit.loop.add(gate.fileno(), lambda: self._gate_moved(attempt))

    def _gate_moved(self, attempt: Attempt) -> None:
        """It closed: the command runs. Or the child says why not, and ends by itself."""
        if attempt.gate is None:
            return
        said = refusal(attempt.gate)
        if said is None:
            return
        self.close_gate(attempt)
        if not attempt.said_go:
            said = said.removeprefix(READY.decode())
        if said:
            if said != NEVER_WENT or not attempt.given_up:
                attempt.details.append(said)
            attempt.said_go = False
        elif attempt.phase is Phase.GATE and attempt.said_go:
            self.began(attempt, attempt.pid)

    def _late(self, attempt: Attempt) -> None:
        """It hangs on its way to the command, or waits in vain for others on this node.

        The others of its gang do not wait for it any more. It is over when its process is gone, as
        one that the kernel does not let go may hold devices.
        """
        if attempt.said_go:
            self._gate_moved(attempt)
        if attempt.phase is not Phase.GATE:
            return
        if self.gangs.waits(attempt):
            seconds = waits_for_others_ms(attempt) / 1000
            late = f"not all members of the gang were ready within {seconds:g} s"
            self.gangs.give_up(attempt.key[0], late)
            return
        attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        attempt.given_up = True
        attempt.details.append(too_late(attempt))
        own_log.warn(f"{attempt.name}: {attempt.details[-1]}")
        processes.send([attempt.pid], signal.SIGKILL)
        self._kit.loop.after(GONE_MS, lambda: self._still_there(attempt))
        self.gangs.gone(attempt)
        self.commits.gone(attempt)

    def _still_there(self, attempt: Attempt) -> None:
        """Nobody but its own attempt waits for it; people should know."""
        if attempt.ending is None:
            held = f"process {attempt.pid} cannot be killed; its devices are kept until it is gone"
            own_log.warn(f"{attempt.name}: {held}")
            if not attempt.work.log_of_user:
                logs.note(attempt.work, f"tgpu: {attempt.details[-1]}; {held}\n")

    def began(self, attempt: Attempt, pid: int) -> None:
        """The command runs, as this process."""
        self.times.leave(attempt)
        attempt.phase = Phase.RUNNING
        attempt.job_pid = pid
        self._kit.report(
            Began(
                allocation_id=attempt.key[0],
                member=attempt.key[1],
                pid=pid,
                at_ms=attempt.began_wall_ms,
            )
        )
        self._ready(attempt)

    def close_gate(self, attempt: Attempt) -> None:
        """Nobody listens to what the child says any more; one that was not let go ends."""
        if attempt.gate is not None:
            self._kit.loop.drop(attempt.gate.fileno())
            attempt.gate.close()
            attempt.gate = None

    def _child_ended(self, attempt: Attempt, status: int) -> None:
        if attempt.gate is not None:
            self._gate_moved(attempt)
        self.close_gate(attempt)
        if not attempt.said_go:
            attempt.pid = 0
            self._refuse(attempt, "")
            return
        code = os.waitstatus_to_exitcode(status)
        self._ended(attempt, Ending(exit_code=code) if code >= 0 else Ending(signal=-code))

    def main_gone(self, attempt: Attempt) -> None:
        """A main process that is not our child has ended."""
        self._kit.loop.drop(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1
        if not attempt.said_go and not attempt.adopted:
            self._refuse(attempt, "")
        else:
            self._ended(attempt, Ending())
