"""The terminal host: serves the terminal of a job at a socket; part of the shim.

The job's output comes in from its terminal, and goes to the log and to every attached client; keys
and window sizes come in from the clients. Only the job's user and root can connect. A client may
also start another program beside the job, on a terminal of its own or on pipes; it runs inside the
job, with the job's devices and limits, and ends with it. The job also runs without any client, and
a client that is slow or gone does not keep it from running.

A message is one byte for its kind, four for its length, and so many bytes. To here: `o` open
(JSON), `d` keys, `w` window size, `c` end of input, `l` leave. From here: `o` opened, `d` output,
`E` errors of a program on pipes, `n` a note, `x` refused, `e` the wait status at the end.

Copied as text beside `shim.py`. Runs with any Python 3.8 or newer, and imports nothing of this
package.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpu_scheduler.agent.runners.terminal_use import Use

    Order = dict[str, Any]

SOCKET = "terminal.sock"
HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
STATUS = struct.Struct("!i")
MAX_MESSAGE = 1 << 20
MAX_CLIENTS = 64
MAX_SIZE = 0xFFFF
"""Rows or columns; the kernel has 16 bits for each."""
CHUNK = 1 << 16
MAX_UNSENT = 1 << 18
"""With more unsent bytes for a client the program has to wait, as on any slow terminal."""
STALLED_S = 60.0
"""A client that reads nothing for so long is disconnected."""
HISTORY_BYTES = 1 << 16
REPLAY_BYTES = 1 << 14
DRAIN_S = 1.0
FLUSH_S = 2.0
KILL_AFTER_S = 10.0
SLOW_CHECK_S = 1.0
START_TIMEOUT_S = 30.0
"""For programs whose directory or file hangs."""
_ALTERNATE = b"\x1b[?1049"
_RETRY = (errno.EINTR, errno.EAGAIN)
_BAD_REQUEST = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError),
)
"""What opening raises for a request with wrong content, and for programs that cannot start."""


def serve(job: int, terminal: int, log: int, order: Order, directory: str, use: Use) -> str:
    """Serve until the job has ended; returns why it was ended from here, if it was."""
    host = Host(Program(job, terminal, {terminal: b"d"}, terminal, log), order, directory, use)
    try:
        return host.run()
    finally:
        signal.set_wakeup_fd(-1)
        host.close()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, SOCKET))


class Program:
    """A program, the descriptors that it is connected to, and its clients."""

    def __init__(
        self, pid: int, inlet: int, outlets: dict[int, bytes], terminal: int, log: int = -1
    ) -> None:
        self.pid = pid
        self.inlet = inlet
        self.outlets = outlets
        self.terminal = terminal
        self.log = log
        self.unwritten = bytearray()
        self.input_closed = False
        self.history = bytearray()
        self.history_cut = False
        self.alternate = False
        self.visited = False
        self.clients: list[Client] = []
        self.start_deadline = time.monotonic() + START_TIMEOUT_S
        for descriptor in {inlet, *outlets}:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def has_ended(self) -> bool:
        """Whether it has ended; it stays a zombie, so that its status can be read later."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def add_history(self, data: bytes) -> None:
        """Keep recent output for clients that attach later."""
        self.history += data
        self.history_cut = self.history_cut or len(self.history) > HISTORY_BYTES
        del self.history[:-HISTORY_BYTES]
        place = data.rfind(_ALTERNATE)
        if place >= 0:
            self.alternate = data[place + len(_ALTERNATE) :][:1] == b"h"

    def replay(self) -> bytes:
        """What a client that attaches sees first; the first client sees all that is kept."""
        if not self.visited and not self.history_cut:
            return bytes(self.history)
        if self.alternate:
            return _ALTERNATE + b"h\x1b[H\x1b[J"
        last = bytes(self.history[-REPLAY_BYTES:])
        return last if len(self.history) <= REPLAY_BYTES else last.partition(b"\n")[2]

    def resize(self, rows: int, columns: int) -> None:
        """Set the window size; the kernel signals the program if it has changed."""
        if self.terminal >= 0 and 0 < rows <= MAX_SIZE and 0 < columns <= MAX_SIZE:
            with contextlib.suppress(OSError):
                packed = struct.pack("HHHH", rows, columns, 0, 0)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, packed)

    def redraw(self) -> None:
        """Ask a full-screen program to draw again."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self.terminal), signal.SIGWINCH)

    def hang_up(self, number: int = signal.SIGHUP) -> None:
        """Signal the program and the foreground process group, as when a terminal is gone."""
        groups = {self.pid}
        if self.terminal >= 0:
            with contextlib.suppress(OSError):
                groups.add(os.tcgetpgrp(self.terminal))
        for group in sorted(groups - {0, os.getpgrp()}):
            for one in (number, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.killpg(group, one)

    def close_input(self) -> None:
        """Send the end-of-file character to a terminal, or close a pipe."""
        if self.terminal >= 0:
            self.unwritten += b"\x04"
        else:
            self.input_closed = True
            self.write()

    def write(self) -> None:
        """Write as much of the input as the program takes."""
        if self.unwritten and self.inlet >= 0:
            try:
                del self.unwritten[: os.write(self.inlet, self.unwritten)]
            except OSError as error:
                if error.errno not in _RETRY:
                    self.unwritten.clear()
        if self.input_closed and not self.unwritten and self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def close(self) -> None:
        """Close its terminal or pipes."""
        for descriptor in {self.inlet, *self.outlets} - {-1}:
            os.close(descriptor)
        self.inlet = self.terminal = -1
        self.outlets = {}


class Client:
    """A connection to the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.program: Program | None = None
        self.received = bytearray()
        self.unsent = bytearray()
        self.moved_at = time.monotonic()
        self.gone = False

    def send(self, kind: bytes, data: bytes) -> None:
        if not self.unsent:
            self.moved_at = time.monotonic()
        self.unsent += HEAD.pack(kind, len(data)) + data
        self.flush()

    def send_opened(self, pid: int) -> None:
        self.send(b"o", json.dumps({"pid": pid}).encode())

    def flush(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.connection.send(self.unsent)]
                self.moved_at = time.monotonic()
        except OSError as error:
            self.gone = self.gone or error.errno not in _RETRY

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Read complete messages; invalid data ends the connection."""
        try:
            data = self.connection.recv(CHUNK)
        except OSError as error:
            self.gone = self.gone or error.errno not in _RETRY
            return []
        self.gone = not data
        self.received += data
        found = []
        while len(self.received) >= HEAD.size:
            kind, length = HEAD.unpack_from(self.received)
            if length > MAX_MESSAGE:
                self.gone = True
                return []
            if len(self.received) < HEAD.size + length:
                break
            found.append((kind, bytes(self.received[HEAD.size : HEAD.size + length])))
            del self.received[: HEAD.size + length]
        return found


class Host:
    """Relays between the job, other programs and their clients until the job has ended."""

    def __init__(self, job: Program, order: Order, directory: str, use: Use) -> None:
        self._job = job
        self._order = order
        self._programs = [job]
        self._starting: dict[int, Program] = {}
        self._clients: list[Client] = []
        self._use = use
        self._detail = ""
        self._kill_at = 0.0
        self._wake, self._note = os.pipe()
        for descriptor in (self._wake, self._note):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listens = False
        self._open(os.path.join(directory, SOCKET))

    def _open(self, path: str) -> None:
        """Listen. Without a socket no client can attach, but the job runs."""
        before = os.umask(0o177)
        with contextlib.suppress(OSError):
            self._listener.bind(path)
            self._listener.listen(MAX_CLIENTS)
            self._listens = True
        os.umask(before)

    def close(self) -> None:
        for descriptor in (self._wake, self._note, *self._starting):
            os.close(descriptor)
        for client in self._clients:
            client.connection.close()
        self._listener.close()

    def run(self) -> str:
        while not self._job.has_ended():
            self._turn(self._use.wait_s())
            self._check_starts()
            self._reap_programs()
            self._check_use()
        self._finish()
        return self._detail

    def _turn(self, wait_s: float) -> None:
        """Wait until a descriptor is ready, and handle it."""
        if self._starting or any(client.unsent for client in self._clients):
            wait_s = min(wait_s, SLOW_CHECK_S)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._listens:
            # A socket that does not listen would always be ready.
            poll.register(self._listener, select.POLLIN)
        wanted = dict.fromkeys(self._starting, select.POLLIN)
        for program in self._programs:
            slow = any(len(client.unsent) > MAX_UNSENT for client in program.clients)
            for outlet in program.outlets if not slow else ():
                wanted[outlet] = wanted.get(outlet, 0) | select.POLLIN
            if program.unwritten and program.inlet >= 0:
                wanted[program.inlet] = wanted.get(program.inlet, 0) | select.POLLOUT
        for client in self._clients:
            full = client.program is not None and len(client.program.unwritten) > MAX_UNSENT
            events = (0 if full else select.POLLIN) | (select.POLLOUT if client.unsent else 0)
            wanted[client.connection.fileno()] = events
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        self._handle_ready(dict(poll.poll(1000 * wait_s)))

    def _handle_ready(self, ready: dict[int, int]) -> None:
        if self._wake in ready:
            os.read(self._wake, 4096)
        for report in [report for report in self._starting if report in ready]:
            self._program_started(report)
        for program in list(self._programs):
            for outlet in [outlet for outlet in program.outlets if outlet in ready]:
                self._copy(program, outlet, ready[outlet])
            if ready.get(program.inlet, 0) & (select.POLLOUT | select.POLLERR):
                program.write()
        for client in list(self._clients):
            self._serve_client(client, ready.get(client.connection.fileno(), 0))
        if self._listener.fileno() in ready:
            self._accept()

    def _serve_client(self, client: Client, events: int) -> None:
        if events & select.POLLOUT:
            client.flush()
        if events & select.POLLIN:
            for kind, data in client.messages():
                self._handle_message(client, kind, data)
        elif events & (select.POLLHUP | select.POLLERR):
            client.gone = True
        if client.unsent and time.monotonic() - client.moved_at > STALLED_S:
            client.gone = True
        if client.gone:
            self._disconnect(client)

    def _copy(self, program: Program, outlet: int, events: int) -> None:
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data = os.read(outlet, CHUNK)
        except OSError as error:
            if error.errno in _RETRY:
                return
            data = b""
        kind = program.outlets[outlet]
        if not data:
            del program.outlets[outlet]
            if outlet != program.inlet:
                os.close(outlet)
            return
        self._use.note()
        write_all(program.log, data)
        if program is self._job:
            program.add_history(data)
        for client in program.clients:
            client.send(kind, data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", peer)[1] not in (0, os.geteuid()):
            connection.close()
            return
        client = Client(connection)
        self._clients.append(client)
        if len(self._clients) > MAX_CLIENTS:
            client.send(b"x", b"too many clients are attached")
            self._disconnect(client)

    def _handle_message(self, client: Client, kind: bytes, data: bytes) -> None:
        self._use.note()
        program = client.program
        if program is None:
            if kind == b"o":
                self._attach(client, data)
            else:
                client.gone = True
        elif kind == b"d":
            program.unwritten += data
            program.write()
        elif kind == b"w" and len(data) == SIZE.size:
            program.resize(*SIZE.unpack(data))
        elif kind == b"c":
            program.close_input()
        elif kind == b"l":
            if program is self._job:
                program.clients.remove(client)
                client.program = None
            client.gone = True

    def _attach(self, client: Client, data: bytes) -> None:
        try:
            request = json.loads(data)
            rows, columns = int(request.get("rows", 0)), int(request.get("columns", 0))
            program = self._job
            if request["mode"] == "start":
                report, program = start(request, self._order)
                self._starting[report] = program
        except _BAD_REQUEST as error:
            client.send(b"x", str(getattr(error, "strerror", None) or error).encode())
            client.gone = True
            return
        client.program = program
        program.resize(rows, columns)
        if program is self._job:
            client.send_opened(program.pid)
            replay = program.replay()
            if replay:
                client.send(b"d", replay)
            if program.visited or program.history_cut:
                program.redraw()
        program.visited = True
        program.clients.append(client)

    def _program_started(self, report: int) -> None:
        """A program runs, or has failed to start; until now its output was not read."""
        problem = os.read(report, 60000)
        program = self._add_program(report)
        for client in list(program.clients):
            if problem:
                self._refuse(client, problem)
            else:
                client.send_opened(program.pid)

    def _check_starts(self) -> None:
        """Give up programs that do not start in time, or whose clients are gone."""
        now = time.monotonic()
        for report, program in list(self._starting.items()):
            if now < program.start_deadline and program.clients:
                continue
            self._add_program(report)
            for client in list(program.clients):
                self._refuse(client, b"it does not start; its directory or file may hang")
            program.hang_up(signal.SIGKILL)

    def _add_program(self, report: int) -> Program:
        """From now on it is a program like others, even if it only has to be reaped."""
        program = self._starting.pop(report)
        os.close(report)
        self._programs.append(program)
        return program

    def _refuse(self, client: Client, problem: bytes) -> None:
        if client.program is not None:
            client.program.clients.remove(client)
            client.program = None
        client.send(b"x", problem)
        client.gone = True
        self._disconnect(client)

    def _disconnect(self, client: Client) -> None:
        """A client that did not leave properly counts as a terminal that is gone."""
        self._clients.remove(client)
        client.connection.close()
        program = client.program
        if program is None:
            return
        program.clients.remove(client)
        if program.clients:
            return
        if program is not self._job:
            program.hang_up()
        elif not self._order["terminal"]["keep"]:
            self._stop("the connection to its terminal broke")

    def _reap_programs(self) -> None:
        """Report the end of programs beside the job to the client that started them."""
        for program in self._programs[1:]:
            if not program.has_ended():
                continue
            self._drain(program)
            _, status = os.waitpid(program.pid, 0)
            self._programs.remove(program)
            for client in program.clients:
                client.program = None
                client.send(b"e", STATUS.pack(status))
            program.close()

    def _check_use(self) -> None:
        now = time.monotonic()
        if self._kill_at:
            if now >= self._kill_at:
                self._job.hang_up(signal.SIGKILL)
            return
        if near := self._use.near_limit():
            self._send_note(near)
        note, why = self._use.verdict(self._job.pid, self._job.visited)
        if note:
            self._send_note(note)
        if why:
            self._stop(why)

    def _stop(self, why: str) -> None:
        if self._kill_at:
            return
        self._detail = why
        self._send_note(f"this job is ended: {why}")
        write_all(self._job.log, f"\r\ntgpu: ended: {why}\r\n".encode())
        self._job.hang_up()
        self._kill_at = time.monotonic() + KILL_AFTER_S

    def _send_note(self, note: str) -> None:
        for client in self._job.clients:
            client.send(b"n", note.encode())

    def _drain(self, program: Program) -> None:
        """Read its last output, for a limited time: processes that it left may write for ever."""
        give_up = time.monotonic() + DRAIN_S
        for outlet in list(program.outlets):
            while outlet in program.outlets and time.monotonic() < give_up:
                ready = select.select([outlet], [], [], 0)[0]
                if not ready:
                    break
                self._copy(program, outlet, select.POLLIN)

    def _finish(self) -> None:
        """The job has ended: send its last output and its wait status to every client."""
        self._drain(self._job)
        ended = os.waitid(os.P_PID, self._job.pid, os.WEXITED | os.WNOWAIT)
        status = 0
        if ended is not None:
            code = ended.si_status
            status = code << 8 if ended.si_code == os.CLD_EXITED else code
        for program in (*self._programs[1:], *self._starting.values()):
            program.hang_up()
        for client in self._clients:
            client.send(b"e", STATUS.pack(status))
        give_up = time.monotonic() + FLUSH_S
        while time.monotonic() < give_up:
            unsent = [client for client in self._clients if client.unsent and not client.gone]
            if not unsent:
                break
            select.select([], [client.connection for client in unsent], [], 0.1)
            for client in unsent:
                client.flush()


def start(request: Order, order: Order) -> tuple[int, Program]:
    """Start another program inside the job; returns a pipe for its error, and the program.

    Only the program itself touches directories, as they may hang for ever.
    """
    argv = [str(word) for word in request["argv"]]
    environment = dict(order["environment"])
    if request.get("term"):
        environment["TERM"] = str(request["term"])
    own = str(order["workdir"] or "/")
    directories = [str(request.get("directory") or own)]
    if request.get("or_its_own"):
        directories.append(own)
    errors, report = os.pipe()
    if request.get("terminal"):
        pid, terminal = pty.fork()
        if pid == 0:
            exec_program(argv, environment, directories, order["umask"], report)
        program = Program(pid, terminal, {terminal: b"d"}, terminal)
    else:
        ends = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for number, end in enumerate((ends[0][0], ends[1][1], ends[2][1])):
                os.dup2(end, number)
            exec_program(argv, environment, directories, order["umask"], report)
        for end in (ends[0][0], ends[1][1], ends[2][1]):
            os.close(end)
        program = Program(pid, ends[0][1], {ends[1][0]: b"d", ends[2][0]: b"E"}, -1)
    os.close(report)
    return errors, program


def exec_program(
    argv: list[str], environment: dict[str, str], directories: list[str], umask: int, report: int
) -> None:
    """Never returns. The working directory is the first of these that exists, else the last."""
    directory = directories[-1]
    try:
        directory = next(filter(os.path.isdir, directories), directory)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        os.umask(umask)
        os.chdir(directory)
        os.execvpe(argv[0], argv, environment)
    except Exception as error:  # noqa: BLE001 - the client must learn of every error
        reason = getattr(error, "strerror", None) or str(error)
        os.write(report, f"cannot run {argv[:1]} in {directory!r}: {reason}".encode())
    finally:
        os._exit(127)


def write_all(target: int, data: bytes) -> None:
    """Write to the log; a log that cannot be written does not stop the job."""
    with contextlib.suppress(OSError):
        while data and target >= 0:
            data = data[os.write(target, data) :]
