"""From an order to a command in a session, by way of its shim.

The opener (tmux, screen, or the shim itself) is let go once the attempt is on disk. The shim then
asks at a gate of its own; who asks there is believed only if it belongs to the job's user and to
this session. It gets the order when the record says who it is, and says one word: began, or why
not. What goes wrong before that ends in `refuse`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from gpu_scheduler.agent.launcher import logs, processes
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase, kept_work
from gpu_scheduler.agent.launcher.lifecycle.launch_spec import environment_of
from gpu_scheduler.agent.launcher.messages import line, parsed, terminal_order
from gpu_scheduler.agent.runners.interface import Command
from gpu_scheduler.agent.spawn.spawner import Launch, refusal, say_go
from gpu_scheduler.agent.work import NOT_BEGUN

# --- What the launcher and the shim of a session say to each other: one order, one word.

MOST_WORD_BYTES = 65_536


class Session:
    """What the shim will be told, and the log to hand over."""

    def __init__(
        self,
        environment: dict[str, str],
        argv: tuple[str, ...],
        log: int,
        recorded: Callable[[str], None],
    ) -> None:
        self.environment = environment
        self.argv = argv
        self.log = log
        self.unsent = b""
        self._heard = b""
        self._recorded: Callable[[str], None] | None = recorded
        self.shim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def send(self) -> None:
        """As much of the order as goes, and with its first part the log."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self.log))]
        try:
            sent = self.shim.sendmsg([self.unsent], rights if self.log >= 0 else [])
        except OSError:
            return
        self.unsent = self.unsent[sent:]

    def word(self) -> bytes | None:
        """The first line that came; None while there is none, and what there is at the end."""
        try:
            part = self.shim.recv(MOST_WORD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._heard += part
        if part and b"\n" not in self._heard and len(self._heard) < MOST_WORD_BYTES:
            return None
        return self._heard.partition(b"\n")[0]

    def finish(self) -> None:
        """The log is handed over or not needed; whoever waits for the record is told."""
        if self.log >= 0:
            os.close(self.log)
            self.log = -1
        if self._recorded is not None:
            self._recorded("")
            self._recorded = None


# --- From an order to a command in a session, by way of its shim.

MOST_ERROR = 2_000
MOST_PID = 1 << 22
NO_SHIM = "the session did not answer as it should, and was ended"
Refuse = Callable[[Attempt, str], None]
Step = Callable[[str], None]


class Steps(Protocol):
    """The steps that attempts in sessions share with all others."""

    def meet(self, attempt: Attempt, step: Step) -> None:
        """Wait for the other members of a gang."""
        ...

    def record(self, attempt: Attempt, done: Step) -> None:
        """Keep on disk who will run."""
        ...

    def recorded_member(self, attempt: Attempt, bad: str, go: Step) -> None:
        """Go on when the records of all members are kept."""
        ...

    def began(self, attempt: Attempt, pid: int) -> None:
        """The command runs, as this process."""
        ...

    def close_gate(self, attempt: Attempt) -> None:
        """Nobody listens to the opener any more."""
        ...

    def main_gone(self, attempt: Attempt) -> None:
        """The shim has ended."""
        ...


class SessionStarter:
    """Brings attempts to life that run in a session."""

    def __init__(self, kit: Kit, refuse: Refuse, steps: Steps) -> None:
        self._kit = kit
        self._refuse = refuse
        self._steps = steps

    def listen(self, attempt: Attempt, launch: Launch) -> None:
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

    def open(
        self,
        attempt: Attempt,
        opener: int,
        command: Command,
        log: int,
        recorded: Callable[[str], None],
    ) -> None:
        """Let the opener run once the attempt is on disk, and wait for the shim at its gate."""
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
            self._steps.close_gate(attempt)
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
        attempt.keep(self._kit.loop.after(wait_ms, too_slow))
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
        self.stop_listening(attempt)
        attempt.cancel_timers()
        attempt.pid = pid
        attempt.pidfd = processes.open_pidfd(pid, processes.start_ticks(pid))
        session.shim.close()
        session.shim = shim
        self._steps.meet(attempt, lambda why: self._all_open(attempt, session, why))

    def _all_open(self, attempt: Attempt, session: Session, why: str) -> None:
        def go(bad: str) -> None:
            self._send_order(attempt, session, bad)

        if why or attempt.stopped_by:
            go(why)
        else:
            session.environment.update(attempt.late_environment)
            self._steps.record(attempt, lambda bad: self._steps.recorded_member(attempt, bad, go))

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
        attempt.keep(self._kit.loop.after(wait_ms, lambda: self._drop_shim(attempt, session, late)))
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
            self._steps.began(attempt, pid if attempt.job_ticks else attempt.pid)
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
        self._steps.main_gone(attempt)

    def _give_up(self, attempt: Attempt, session: Session, why: str) -> None:
        attempt.cancel_timers()
        self._steps.close_gate(attempt)
        self.stop_listening(attempt)
        self._hang_up(attempt, session)
        session.finish()
        if attempt.pidfd >= 0:
            processes.kill_exactly(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pid, attempt.pidfd = 0, -1
        self._refuse(attempt, why)

    def stop_listening(self, attempt: Attempt) -> None:
        """Take the gate for the shim away, if there is one."""
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
