"""From an order to a command in a session (tmux, screen, terminal), by way of its shim.

The opener (tmux, screen, or the shim itself) is released once the attempt is on disk. The shim then
connects to a gate of its own; the launcher accepts a caller only if it belongs to the job's user
and to this session. The shim gets the order when the record on disk names it, and answers with one
line: that the command began, or why not. A failure before that is reported as `start_failed`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from functools import partial

from gpu_scheduler.agent.launcher import log_rotation, processes
from gpu_scheduler.agent.launcher.context import AttemptEvents, LauncherContext
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase, journal_work
from gpu_scheduler.agent.launcher.lifecycle.start_gate import StartGate
from gpu_scheduler.agent.launcher_protocol import (
    NOT_BEGUN,
    decode_line,
    encode_line,
    terminal_order,
)
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.spawn.spawner import Launch, read_refusal, send_go

MAX_ANSWER_BYTES = 65_536
MAX_ERROR = 2_000
MAX_PID = 1 << 22
BAD_ANSWER = "the session did not answer as it should, and was ended"


class ShimConnection:
    """The order for the shim, what of it is not sent yet, and the log to hand over."""

    def __init__(self, argv: tuple[str, ...], environment: dict[str, str], log: int) -> None:
        self.argv = argv
        self.environment = environment
        self.unsent = b""
        self._log = log
        self._received = b""
        self._socket: socket.socket | None = None

    @property
    def descriptor(self) -> int:
        """That of the connection; -1 before it is open and after it was closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def connect(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self) -> None:
        """Send as much of the order as the socket takes, and the log with its first part."""
        if self._socket is None:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self._log))]
        try:
            sent = self._socket.sendmsg([self.unsent], rights if self._log >= 0 else [])
        except OSError:
            return
        self.unsent = self.unsent[sent:]

    def read_answer(self) -> bytes | None:
        """The first line, or all there is at the end; None while neither has come."""
        if self._socket is None:
            return b""
        try:
            part = self._socket.recv(MAX_ANSWER_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._received += part
        if part and b"\n" not in self._received and len(self._received) < MAX_ANSWER_BYTES:
            return None
        return self._received.partition(b"\n")[0]

    def close_log(self) -> None:
        """The shim has the log, or does not need it."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class SessionStarter:
    """Starts attempts that run in a session."""

    def __init__(self, context: LauncherContext, gate: StartGate, events: AttemptEvents) -> None:
        self._context = context
        self._gate = gate
        self._events = events

    def listen(self, attempt: Attempt, launch: Launch) -> None:
        """Open a gate for the shim, in the directory that only the job's user can enter."""
        path = f"{attempt.work.scratch_dir}/gate-{os.urandom(4).hex()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        attempt.start.listener = listener
        before = os.umask(0)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(4)
        launch.argv = tuple(path if part == "{gate}" else part for part in launch.argv)

    def stop_listening(self, attempt: Attempt) -> None:
        """Remove the gate for the shim, if there is one."""
        if attempt.start.listener is not None:
            self._context.loop.drop(attempt.start.listener.fileno())
            path = attempt.start.listener.getsockname()
            attempt.start.listener.close()
            if path:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            attempt.start.listener = None

    def open(
        self,
        attempt: Attempt,
        opener_pid: int,
        argv: tuple[str, ...],
        environment: dict[str, str],
        log: int,
    ) -> None:
        """Release the opener once the attempt is on disk, and wait for the shim at its gate."""
        loop = self._context.loop
        shim = ShimConnection(argv, environment, log)
        attempt.opener_pid = opener_pid
        loop.at_exit(opener_pid, self._opener_ended, attempt, shim)
        record = attempt.add_record("accepted", work=journal_work(attempt.work))
        self._context.journal.append(record, partial(self._release_opener, shim), attempt)
        attempt.add_timer(
            loop.after(attempt.work.start_timeout_ms, self._opening_timed_out, attempt, shim)
        )
        if attempt.start.listener is not None:
            loop.add(attempt.start.listener.fileno(), self._accept_shim, attempt, shim)

    def _release_opener(self, shim: ShimConnection, attempt: Attempt, error: str) -> None:
        if error or attempt.stopped_by or attempt.start.gate is None:
            self._give_up(attempt, shim, error)
            return
        send_go(attempt.start.gate)

    def _opener_ended(self, attempt: Attempt, shim: ShimConnection, status: int) -> None:
        message = read_refusal(attempt.start.gate) if attempt.start.gate is not None else ""
        self._gate.close(attempt)
        if (message or status) and attempt.phase is Phase.GATE and attempt.pid == 0:
            why = message or log_rotation.last_line(attempt.work) or f"wait status {status}"
            self._give_up(attempt, shim, f"cannot open the {attempt.work.runner}: {why}")

    def _opening_timed_out(self, attempt: Attempt, shim: ShimConnection) -> None:
        attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        work = attempt.work
        seconds = work.start_timeout_ms / 1000
        reason = f"the {work.runner} session did not open within {seconds:g} s"
        self._give_up(attempt, shim, reason)

    def _accept_shim(self, attempt: Attempt, shim: ShimConnection) -> None:
        if attempt.start.listener is None:
            return
        try:
            connection, _ = attempt.start.listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid != attempt.work.uid or attempt.pid or not self._is_in_session(pid, attempt):
            connection.close()
            return
        self.stop_listening(attempt)
        attempt.cancel_timers()
        attempt.pid = pid
        attempt.pidfd = processes.open_pidfd(pid, processes.start_ticks(pid))
        shim.connect(connection)
        self._gate.wait_for_gang(attempt, partial(self._gang_ready, shim))

    def _is_in_session(self, pid: int, attempt: Attempt) -> bool:
        """Below the opener, or below a daemon that it left to us; not a process of another job."""
        above = processes.ancestors_below(pid, os.getpid())
        known = self._context.loop.known_children.keys() - {attempt.opener_pid}
        return bool(above) and above[-1] not in known

    def _gang_ready(self, shim: ShimConnection, attempt: Attempt, reason: str) -> None:
        if reason or attempt.stopped_by:
            self._send_order(shim, attempt, reason)
        else:
            shim.environment.update(attempt.start.commit_environment)
            self._gate.record_member(attempt, partial(self._send_order, shim))

    def _send_order(self, shim: ShimConnection, attempt: Attempt, problem: str) -> None:
        if problem or attempt.stopped_by or attempt.pidfd < 0 or attempt.phase is not Phase.GATE:
            self._give_up(attempt, shim, problem)
            return
        work = attempt.work
        order = {
            "argv": shim.argv,
            "environment": shim.environment,
            "workdir": work.workdir,
            "umask": work.umask,
            "output": work.log_path if work.log_of_user else "",
            "terminal": terminal_order(work),
        }
        shim.unsent = encode_line(order)
        shim.send()
        shim.close_log()
        attempt.acknowledge_start()
        loop, wait_ms = self._context.loop, work.start_timeout_ms
        loop.add(attempt.pidfd, self._shim_ended, attempt, shim)
        late = (
            f"its session did not say within {wait_ms / 1000:g} s that the command runs, and was "
            f"ended; the working directory {work.workdir!r} or the output file may hang"
        )
        attempt.add_timer(loop.after(wait_ms, self._kill_shim, attempt, shim, late))
        self._watch_shim(attempt, shim)

    def _watch_shim(self, attempt: Attempt, shim: ShimConnection) -> None:
        """The job may run from the moment the last byte of the order is sent."""
        attempt.start.released = not shim.unsent
        writing = bool(shim.unsent)
        self._context.loop.add(shim.descriptor, self._shim_ready, attempt, shim, writing=writing)

    def _shim_ready(self, attempt: Attempt, shim: ShimConnection) -> None:
        """The shim takes more of the order, or answers: the command began, or why not."""
        if not attempt.start.released:
            if attempt.stopped_by:
                self._kill_shim(attempt, shim, "")
                return
            shim.send()
            self._watch_shim(attempt, shim)
        answer = shim.read_answer()
        if answer is None:
            return
        pid, error = _decode_answer(answer)
        if error:
            attempt.start.released = False
            self._kill_shim(attempt, shim, error)
        elif (
            pid and attempt.start.released and attempt.phase is Phase.GATE and _is_job(attempt, pid)
        ):
            self._disconnect(attempt, shim)
            attempt.job_ticks = processes.start_ticks(pid)
            record = attempt.add_record("job", pid=pid, ticks=attempt.job_ticks)
            self._context.journal.append_unsynced(record)
            self._gate.set_running(attempt, pid if attempt.job_ticks else attempt.pid)
        else:
            self._kill_shim(attempt, shim, BAD_ANSWER)

    def _kill_shim(self, attempt: Attempt, shim: ShimConnection, reason: str) -> None:
        """End a shim that cannot be relied on, and with it the attempt."""
        attempt.details.append(reason)
        self._disconnect(attempt, shim)
        processes.kill_pidfd(attempt.pidfd)

    def _disconnect(self, attempt: Attempt, shim: ShimConnection) -> None:
        """Nothing that the session sends after its answer is read."""
        attempt.cancel_timers()
        if shim.descriptor >= 0:
            self._context.loop.drop(shim.descriptor)
            shim.close()

    def _shim_ended(self, attempt: Attempt, shim: ShimConnection) -> None:
        if shim.descriptor >= 0:
            # Its answer may have arrived in the same moment.
            self._shim_ready(attempt, shim)
            self._disconnect(attempt, shim)
        self._context.close_pidfd(attempt)
        if attempt.start.released:
            self._events.main_process_ended(attempt, Ending())
        else:
            self._events.start_failed(attempt, "")

    def _give_up(self, attempt: Attempt, shim: ShimConnection, reason: str) -> None:
        attempt.cancel_timers()
        self._gate.close(attempt)
        self.stop_listening(attempt)
        self._disconnect(attempt, shim)
        shim.close_log()
        attempt.acknowledge_start()
        if attempt.pidfd >= 0:
            processes.kill_pidfd(attempt.pidfd)
            self._context.close_pidfd(attempt)
            attempt.pid = 0
        self._events.start_failed(attempt, reason)


def _is_job(attempt: Attempt, pid: int) -> bool:
    """Check the pid that the shim names, as it will be signalled: the user's, and below the shim.

    It may also have ended already, as short jobs do.
    """
    below, user = processes.ancestors_below(pid, attempt.pid), processes.user_of(pid)
    return user == -1 or (bool(below) and user == attempt.work.uid)


def _decode_answer(answer: bytes) -> tuple[int, str]:
    """The job's pid, or the error. The answer comes from the user's process: it can be anything."""
    try:
        message = decode_line(answer)
    except (ValueError, RecursionError):
        return 0, ""
    pid, error = message.get("began"), message.get("error")
    if isinstance(error, str):
        return 0, error[:MAX_ERROR].encode(errors="replace").decode()
    return (pid if type(pid) is int and 1 < pid < MAX_PID else 0), ""
