"""From an order to a running command, at most once.

Prolog, then the child at its gate, then the record on disk, then go. Whatever goes wrong before go
ends in `refuse`: nothing has run, and the reason is told. Members of a gang wait for each other at
the gate, ready up to the command itself, and once more when all records are on disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable

from gpu_scheduler.agent.launcher import logs, processes, scratch
from gpu_scheduler.agent.launcher.attempt import Attempt, Phase, hook_environment, kept_work
from gpu_scheduler.agent.launcher.child import READY
from gpu_scheduler.agent.launcher.commits import Commits
from gpu_scheduler.agent.launcher.forms import line, parsed, terminal_order
from gpu_scheduler.agent.launcher.gangs import Gangs
from gpu_scheduler.agent.launcher.kit import Kit
from gpu_scheduler.agent.launcher.launches import environment_of, launch_of, problem_of
from gpu_scheduler.agent.launcher.loop import now_ms, wall_ms
from gpu_scheduler.agent.launcher.own_log import own_log
from gpu_scheduler.agent.launcher.seats import Seat
from gpu_scheduler.agent.launcher.shims import Session
from gpu_scheduler.agent.launcher.spawn import NEVER_WENT, Launch, Spawned, refusal, say_go
from gpu_scheduler.agent.launcher.start_times import StartTimes, too_late, waits_for_others_ms
from gpu_scheduler.agent.runners.contract import Command, Ending
from gpu_scheduler.agent.work import NOT_BEGUN, Began, Report

GONE_MS = 5_000
"""A process that was killed is gone by then, unless the kernel does not let it go."""
MOST_ERROR = 2_000
MOST_PID = 1 << 22
NO_SHIM = "the session did not answer as it should, and was ended"
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
                self._listen(attempt, launch)
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
        self._stop_listening(attempt)
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
            self._open_session(attempt, child.pid, command, log, recorded)
            return
        if log >= 0:
            os.close(log)
        attempt.pid = child.pid
        self.times.begin(attempt, attempt.work.start_timeout_ms)
        self._kit.loop.at_exit(child.pid, lambda status: self._child_ended(attempt, status))
        if attempt.waits_at_gate:
            self._kit.loop.add(child.gate.fileno(), lambda: self._gate_answers(attempt))
        else:
            self._record(attempt, lambda bad: self._go(attempt, bad, recorded))

    def _gate_answers(self, attempt: Attempt) -> None:
        """A member of a gang is ready, or says why it cannot be, and ends by itself."""
        said = None if attempt.gate is None else refusal(attempt.gate)
        if attempt.gate is None or said is None:
            return
        self._kit.loop.drop(attempt.gate.fileno())
        if said == READY.decode():
            self._meet(attempt, lambda why: self._all_ready(attempt, why))
        else:
            attempt.details.append(said)
            self._close_gate(attempt)

    def _meet(self, attempt: Attempt, step: Callable[[str], None]) -> None:
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
            self._record(attempt, lambda bad: self._recorded_member(attempt, bad, go))

    def _recorded_member(self, attempt: Attempt, bad: str, go: Callable[[str], None]) -> None:
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

    def _record(self, attempt: Attempt, done: Callable[[str], None]) -> None:
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
            self._close_gate(attempt)
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
        self._close_gate(attempt)
        if not attempt.said_go:
            said = said.removeprefix(READY.decode())
        if said:
            if said != NEVER_WENT or not attempt.given_up:
                attempt.details.append(said)
            attempt.said_go = False
        elif attempt.phase is Phase.GATE and attempt.said_go:
            self._began(attempt, attempt.pid)

    def _late(self, attempt: Attempt) -> None:
        """It hangs on its way to the command, or waits in vain for others on this node.

        The others of its gang do not wait for it any more. It is over when its process is gone, as
        one that the kernel does not let go may hold devices.
        """
        if attempt.said_go:
            self._gate_moved(attempt)
        if attempt.phase is not Phase.GATE:
            return
        attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        if self.gangs.waits(attempt):
            seconds = waits_for_others_ms(attempt) / 1000
            attempt.details.append(f"not all members of the gang were ready within {seconds:g} s")
            self.gangs.leave(attempt)
            return
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

    def _began(self, attempt: Attempt, pid: int) -> None:
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

    def _close_gate(self, attempt: Attempt) -> None:
        if attempt.gate is not None:
            self._kit.loop.drop(attempt.gate.fileno())
            attempt.gate.close()
            attempt.gate = None

    def _child_ended(self, attempt: Attempt, status: int) -> None:
        if attempt.gate is not None:
            self._gate_moved(attempt)
        self._close_gate(attempt)
        if not attempt.said_go:
            attempt.pid = 0
            self._refuse(attempt, "")
            return
        code = os.waitstatus_to_exitcode(status)
        self._ended(attempt, Ending(exit_code=code) if code >= 0 else Ending(signal=-code))

    # --- sessions ---------------------------------------------------------------------------------

    def _listen(self, attempt: Attempt, launch: Launch) -> None:
        """A gate for the shim, in the directory that only the job's user can enter."""
        path = f"{attempt.work.scratch_dir}/gate-{os.urandom(4).hex()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        attempt.listener = listener
        before = os.umask(0)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(4)
        launch.argv = tuple(path if part == "{gate}" else part for part in launch.argv)

    def _open_session(
        self,
        attempt: Attempt,
        opener: int,
        command: Command,
        log: int,
        recorded: Callable[[str], None],
    ) -> None:
        session = Session(environment_of(self._kit, attempt.work), command.job, log, recorded)
        attempt.opener = opener
        record = attempt.record("accepted", work=kept_work(attempt.work))

        def open_gate(bad: str) -> None:
            if bad or attempt.stopped_by or attempt.gate is None:
                self._give_up(attempt, session, bad)
                return
            say_go(attempt.gate)

        def opener_ended(status: int) -> None:
            said = refusal(attempt.gate) if attempt.gate is not None else ""
            self._close_gate(attempt)
            if (said or status) and attempt.phase is Phase.GATE and attempt.pid == 0:
                why = said or logs.last_line(attempt.work) or f"wait status {status}"
                self._give_up(attempt, session, f"cannot open the {attempt.work.runner}: {why}")

        self._kit.loop.at_exit(opener, opener_ended)
        self._kit.journal.append(record, open_gate)

        def too_slow() -> None:
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
            self._give_up(attempt, session, late)

        wait_ms = attempt.work.start_timeout_ms
        late = f"the {attempt.work.runner} session did not open within {wait_ms / 1000:g} s"
        attempt.timers.append(self._kit.loop.after(wait_ms, too_slow))
        listener = attempt.listener
        if listener is not None:
            self._kit.loop.add(listener.fileno(), lambda: self._shim_asks(attempt, session))

    def _shim_asks(self, attempt: Attempt, session: Session) -> None:
        if attempt.listener is None:
            return
        try:
            shim, _ = attempt.listener.accept()
        except OSError:
            return
        shim.setblocking(False)
        credentials = shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid != attempt.work.uid or attempt.pid or not self._of_session(pid, attempt):
            shim.close()
            return
        self._stop_listening(attempt)
        attempt.cancel_timers()
        attempt.pid = pid
        attempt.pidfd = processes.open_pidfd(pid, processes.start_ticks(pid))
        session.shim.close()
        session.shim = shim
        self._meet(attempt, lambda why: self._all_open(attempt, session, why))

    def _all_open(self, attempt: Attempt, session: Session, why: str) -> None:
        def go(bad: str) -> None:
            self._send_order(attempt, session, bad)

        if why or attempt.stopped_by:
            go(why)
        else:
            session.environment.update(attempt.late_environment)
            self._record(attempt, lambda bad: self._recorded_member(attempt, bad, go))

    def _of_session(self, pid: int, attempt: Attempt) -> bool:
        """Below the opener, or below a daemon that it left to us; not out of another job."""
        above = processes.line_of(pid, os.getpid())
        known = self._kit.loop.known_children.keys() - {attempt.opener}
        return bool(above) and above[-1] not in known

    def _send_order(self, attempt: Attempt, session: Session, bad: str) -> None:
        if bad or attempt.stopped_by or attempt.pidfd < 0 or attempt.phase is not Phase.GATE:
            self._give_up(attempt, session, bad)
            return
        work = attempt.work
        order = {
            "argv": session.argv,
            "environment": session.environment,
            "workdir": work.workdir,
            "umask": work.umask,
            "output": work.log_path if work.log_of_user else "",
            "terminal": terminal_order(work),
        }
        session.unsent = line(order)
        session.send()
        session.finish()
        self._kit.loop.add(attempt.pidfd, lambda: self._shim_ended(attempt, session))
        wait_ms = work.start_timeout_ms
        late = (
            f"its session did not say within {wait_ms / 1000:g} s that the command runs, and was "
            f"ended; the working directory {work.workdir!r} or the output file may hang"
        )
        attempt.timers.append(
            self._kit.loop.after(wait_ms, lambda: self._drop_shim(attempt, session, late))
        )
        self._listen_to_shim(attempt, session)

    def _listen_to_shim(self, attempt: Attempt, session: Session) -> None:
        """From the last byte of the order on the job may run."""
        attempt.said_go = not session.unsent
        self._kit.loop.add(
            session.shim.fileno(),
            lambda: self._shim_moved(attempt, session),
            writing=bool(session.unsent),
        )

    def _shim_moved(self, attempt: Attempt, session: Session) -> None:
        """It takes more of the order, or says its one word: began, or why not."""
        if not attempt.said_go:
            if attempt.stopped_by:
                self._drop_shim(attempt, session, "")
                return
            session.send()
            self._listen_to_shim(attempt, session)
        word = session.word()
        if word is None:
            return
        pid, error = _understood(word)
        if error:
            attempt.said_go = False
            self._drop_shim(attempt, session, error)
        elif pid and attempt.said_go and attempt.phase is Phase.GATE and _is_job(attempt, pid):
            self._hang_up(attempt, session)
            attempt.job_ticks = processes.start_ticks(pid)
            record = attempt.record("job", pid=pid, ticks=attempt.job_ticks)
            self._kit.journal.append_softly(record, lambda _: None)
            self._began(attempt, pid if attempt.job_ticks else attempt.pid)
        else:
            self._drop_shim(attempt, session, NO_SHIM)

    def _drop_shim(self, attempt: Attempt, session: Session, why: str) -> None:
        """It cannot be relied on: it is ended, and with it the attempt."""
        attempt.details.append(why)
        self._hang_up(attempt, session)
        processes.kill_exactly(attempt.pidfd)

    def _hang_up(self, attempt: Attempt, session: Session) -> None:
        """Nothing that the session says after its one word is listened to."""
        attempt.cancel_timers()
        if session.shim.fileno() >= 0:
            self._kit.loop.drop(session.shim.fileno())
            session.shim.close()

    def _shim_ended(self, attempt: Attempt, session: Session) -> None:
        """Its last word may have come in the same moment."""
        if session.shim.fileno() >= 0:
            self._shim_moved(attempt, session)
            self._hang_up(attempt, session)
        self.main_gone(attempt)

    def main_gone(self, attempt: Attempt) -> None:
        """A main process that is not our child has ended."""
        self._kit.loop.drop(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = -1
        if not attempt.said_go and not attempt.adopted:
            self._refuse(attempt, "")
        else:
            self._ended(attempt, Ending())

    def _give_up(self, attempt: Attempt, session: Session, why: str) -> None:
        attempt.cancel_timers()
        self._close_gate(attempt)
        self._stop_listening(attempt)
        self._hang_up(attempt, session)
        session.finish()
        if attempt.pidfd >= 0:
            processes.kill_exactly(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pid, attempt.pidfd = 0, -1
        self._refuse(attempt, why)

    def _stop_listening(self, attempt: Attempt) -> None:
        if attempt.listener is not None:
            self._kit.loop.drop(attempt.listener.fileno())
            path = attempt.listener.getsockname()
            attempt.listener.close()
            if path:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            attempt.listener = None


def _is_job(attempt: Attempt, pid: int) -> bool:
    """What the shim calls the job will be signalled: so it is the user's and below the shim.

    Or it has ended already, as short jobs do.
    """
    below, user = processes.line_of(pid, attempt.pid), processes.user_of(pid)
    return user == -1 or (bool(below) and user == attempt.work.uid)


def _understood(word: bytes) -> tuple[int, str]:
    """The job's pid, or why there is none. It comes from the user: it can be anything."""
    try:
        message = parsed(word)
    except (ValueError, RecursionError):
        return 0, ""
    pid, error = message.get("began"), message.get("error")
    if isinstance(error, str):
        return 0, error[:MOST_ERROR].encode(errors="replace").decode()
    return (pid if type(pid) is int and 1 < pid < MOST_PID else 0), ""
