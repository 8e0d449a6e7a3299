"""The terminal of a job, for whoever comes to it: the other half of the shim.

The job's output comes in on its terminal, and goes to the log and to every person who is there;
keys and window sizes come in from them. They come by a socket that only the job's user (or root)
can open. Who has opened it may also start another program beside the job: on a terminal of its own,
or on pipes. It runs inside the job, with the job's devices and limits, and ends with it. Nobody
needs to be there, and nobody who is slow or gone keeps the job from running.

A message is one byte for its kind, four for its length, and so many bytes. To here: `o` open
(JSON), `d` keys, `w` window size, `c` end of input, `l` leave. From here: `o` opened, `d` output,
`E` errors of a program on pipes, `n` a note, `x` refused, `e` the wait status at the end.

Runs with any Python 3.8 or newer, and imports nothing of this package.
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
MOST_MESSAGE = 1 << 20
MOST_CLIENTS = 64
PIECE = 1 << 16
ENOUGH = 1 << 18
"""More than this is not kept for one who is slow; the program waits, as on any slow terminal."""
STALLED_S = 60.0
"""Who takes nothing for so long is taken for gone."""
KEPT = 1 << 16
SHOWN_AGAIN = 1 << 14
DRAIN_S = 1.0
FAREWELL_S = 2.0
KILL_AFTER_S = 10.0
SLOW_CHECK_S = 1.0
LONGEST_START_S = 30.0
"""A program whose directory or file does not answer for so long is given up."""
_ALTERNATE = b"\x1b[?1049"
_HARMLESS = (errno.EINTR, errno.EAGAIN)


def serve(job: int, terminal: int, log: int, order: Order, directory: str, use: Use) -> str:
    """Serve until the job has ended; why it was ended from here, if it was."""
    host = Host(Program(job, terminal, {terminal: b"d"}, terminal, log), order, directory, use)
    try:
        return host.run()
    finally:
        signal.set_wakeup_fd(-1)
        host.close()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, SOCKET))


class Program:
    """A program, the ends of what it is connected with, and who is there."""

    def __init__(
        self, pid: int, inlet: int, outlets: dict[int, bytes], terminal: int, log: int = -1
    ) -> None:
        self.pid = pid
        self.inlet = inlet
        self.outlets = outlets
        self.terminal = terminal
        self.log = log
        self.unwritten = bytearray()
        self.input_ends = False
        self.recent = bytearray()
        self.forgot = False
        self.alternate = False
        self.visited = False
        self.clients: list[Client] = []
        self.give_up_at = time.monotonic() + LONGEST_START_S
        for descriptor in {inlet, *outlets}:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def has_ended(self) -> bool:
        """Whether it has; its status stays to be read."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def remember(self, data: bytes) -> None:
        """For those who come later."""
        self.recent += data
        self.forgot = self.forgot or len(self.recent) > KEPT
        del self.recent[:-KEPT]
        place = data.rfind(_ALTERNATE)
        if place >= 0:
            self.alternate = data[place + len(_ALTERNATE) :][:1] == b"h"

    def past(self) -> bytes:
        """What somebody who comes now should see first: the first one everything, if it is kept."""
        if not self.visited and not self.forgot:
            return bytes(self.recent)
        if self.alternate:
            return _ALTERNATE + b"h\x1b[H\x1b[J"
        last = bytes(self.recent[-SHOWN_AGAIN:])
        return last if len(self.recent) <= SHOWN_AGAIN else last.partition(b"\n")[2]

    def resize(self, rows: int, columns: int) -> None:
        """The kernel tells the program if that is news."""
        if self.terminal >= 0 and rows and columns:
            with contextlib.suppress(OSError):
                packed = struct.pack("HHHH", rows, columns, 0, 0)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, packed)

    def redraw(self) -> None:
        """Ask whatever fills the screen to do so again."""
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self.terminal), signal.SIGWINCH)

    def hang_up(self, number: int = signal.SIGHUP) -> None:
        """As when a terminal is gone: its owner and what is in the foreground are told."""
        groups = {self.pid}
        if self.terminal >= 0:
            with contextlib.suppress(OSError):
                groups.add(os.tcgetpgrp(self.terminal))
        for group in sorted(groups - {0, os.getpgrp()}):
            for one in (number, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.killpg(group, one)

    def close_input(self) -> None:
        """A terminal is told by its character, a pipe by its end."""
        if self.terminal >= 0:
            self.unwritten += b"\x04"
        else:
            self.input_ends = True
            self.write()

    def write(self) -> None:
        """As much of the input as goes."""
        if self.unwritten and self.inlet >= 0:
            try:
                del self.unwritten[: os.write(self.inlet, self.unwritten)]
            except OSError as error:
                if error.errno not in _HARMLESS:
                    self.unwritten.clear()
        if self.input_ends and not self.unwritten and self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def close(self) -> None:
        """Let go of its terminal or pipes."""
        for descriptor in {self.inlet, *self.outlets} - {-1}:
            os.close(descriptor)
        self.inlet = self.terminal = -1
        self.outlets = {}


class Client:
    """Somebody who has opened the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.program: Program | None = None
        self.heard = bytearray()
        self.unsent = bytearray()
        self.moved_at = time.monotonic()
        self.gone = False

    def say(self, kind: bytes, data: bytes) -> None:
        if not self.unsent:
            self.moved_at = time.monotonic()
        self.unsent += HEAD.pack(kind, len(data)) + data
        self.send()

    def greet(self, pid: int) -> None:
        self.say(b"o", json.dumps({"pid": pid}).encode())

    def send(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.connection.send(self.unsent)]
                self.moved_at = time.monotonic()
        except OSError as error:
            self.gone = self.gone or error.errno not in _HARMLESS

    def messages(self) -> list[tuple[bytes, bytes]]:
        """What has come, in whole messages; nonsense ends the conversation."""
        try:
            data = self.connection.recv(PIECE)
        except OSError as error:
            self.gone = self.gone or error.errno not in _HARMLESS
            return []
        self.gone = not data
        self.heard += data
        found = []
        while len(self.heard) >= HEAD.size:
            kind, length = HEAD.unpack_from(self.heard)
            if length > MOST_MESSAGE:
                self.gone = True
                return []
            if len(self.heard) < HEAD.size + length:
                break
            found.append((kind, bytes(self.heard[HEAD.size : HEAD.size + length])))
            del self.heard[: HEAD.size + length]
        return found


class Host:
    """Passes on what the job and those who are there say to each other, until the job has ended."""

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
        """Without a socket nobody can come, but the job runs."""
        before = os.umask(0o177)
        with contextlib.suppress(OSError):
            self._listener.bind(path)
            self._listener.listen(MOST_CLIENTS)
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
            self._look_after_starts()
            self._bury()
            self._look_after_use()
        self._end()
        return self._detail

    def _turn(self, wait_s: float) -> None:
        """Wait for something to happen, and deal with it."""
        if self._starting or any(client.unsent for client in self._clients):
            wait_s = min(wait_s, SLOW_CHECK_S)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._listens:
            # One that does not listen would be ready at once, for ever.
            poll.register(self._listener, select.POLLIN)
        wanted = dict.fromkeys(self._starting, select.POLLIN)
        for program in self._programs:
            slow = any(len(client.unsent) > ENOUGH for client in program.clients)
            for outlet in program.outlets if not slow else ():
                wanted[outlet] = wanted.get(outlet, 0) | select.POLLIN
            if program.unwritten and program.inlet >= 0:
                wanted[program.inlet] = wanted.get(program.inlet, 0) | select.POLLOUT
        for client in self._clients:
            full = client.program is not None and len(client.program.unwritten) > ENOUGH
            events = (0 if full else select.POLLIN) | (select.POLLOUT if client.unsent else 0)
            wanted[client.connection.fileno()] = events
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        self._deal(dict(poll.poll(1000 * wait_s)))

    def _deal(self, ready: dict[int, int]) -> None:
        if self._wake in ready:
            os.read(self._wake, 4096)
        for report in [report for report in self._starting if report in ready]:
            self._began(report)
        for program in list(self._programs):
            for outlet in [outlet for outlet in program.outlets if outlet in ready]:
                self._copy(program, outlet, ready[outlet])
            if ready.get(program.inlet, 0) & (select.POLLOUT | select.POLLERR):
                program.write()
        for client in list(self._clients):
            self._listen(client, ready.get(client.connection.fileno(), 0))
        if self._listener.fileno() in ready:
            self._welcome()

    def _listen(self, client: Client, events: int) -> None:
        if events & select.POLLOUT:
            client.send()
        if events & select.POLLIN:
            for kind, data in client.messages():
                self._obey(client, kind, data)
        elif events & (select.POLLHUP | select.POLLERR):
            client.gone = True
        if client.unsent and time.monotonic() - client.moved_at > STALLED_S:
            client.gone = True
        if client.gone:
            self._leave(client)

    def _copy(self, program: Program, outlet: int, events: int) -> None:
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data = os.read(outlet, PIECE)
        except OSError as error:
            if error.errno in _HARMLESS:
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
            program.remember(data)
        for client in program.clients:
            client.say(kind, data)

    def _welcome(self) -> None:
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
        if len(self._clients) > MOST_CLIENTS:
            client.say(b"x", b"too many are here already")
            self._leave(client)

    def _obey(self, client: Client, kind: bytes, data: bytes) -> None:
        self._use.note()
        program = client.program
        if program is None:
            if kind == b"o":
                self._take_in(client, data)
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

    def _take_in(self, client: Client, data: bytes) -> None:
        try:
            asked = json.loads(data)
            rows, columns = int(asked.get("rows", 0)), int(asked.get("columns", 0))
            program = self._job
            if asked["mode"] == "start":
                report, program = start(asked, self._order)
                self._starting[report] = program
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            client.say(b"x", str(getattr(error, "strerror", None) or error).encode())
            client.gone = True
            return
        client.program = program
        program.resize(rows, columns)
        if program is self._job:
            client.greet(program.pid)
            past = program.past()
            if past:
                client.say(b"d", past)
            if program.visited or program.forgot:
                program.redraw()
        program.visited = True
        program.clients.append(client)

    def _began(self, report: int) -> None:
        """A program runs, or cannot: until now nothing of it was read, and nobody has waited."""
        problem = os.read(report, 60000)
        program = self._begin(report)
        for client in list(program.clients):
            if problem:
                self._refuse(client, problem)
            else:
                client.greet(program.pid)

    def _look_after_starts(self) -> None:
        """What hangs in a directory that does not answer cannot be ended, but it can be left."""
        now = time.monotonic()
        for report, program in list(self._starting.items()):
            if now < program.give_up_at and program.clients:
                continue
            self._begin(report)
            for client in list(program.clients):
                self._refuse(client, b"it does not start; its directory or file may not answer")
            program.hang_up(signal.SIGKILL)

    def _begin(self, report: int) -> Program:
        """From now on it is a program like others, also if that only means to bury it."""
        program = self._starting.pop(report)
        os.close(report)
        self._programs.append(program)
        return program

    def _refuse(self, client: Client, problem: bytes) -> None:
        if client.program is not None:
            client.program.clients.remove(client)
            client.program = None
        client.say(b"x", problem)
        client.gone = True
        self._leave(client)

    def _leave(self, client: Client) -> None:
        """Without a word of farewell it is as when a terminal is gone."""
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

    def _bury(self) -> None:
        """Programs beside the job: the one who started each is told how it ended."""
        for program in self._programs[1:]:
            if not program.has_ended():
                continue
            self._drain(program)
            _, status = os.waitpid(program.pid, 0)
            self._programs.remove(program)
            for client in program.clients:
                client.program = None
                client.say(b"e", STATUS.pack(status))
            program.close()

    def _look_after_use(self) -> None:
        now = time.monotonic()
        if self._kill_at:
            if now >= self._kill_at:
                self._job.hang_up(signal.SIGKILL)
            return
        if near := self._use.near_limit():
            self._tell(near)
        note, why = self._use.verdict(self._job.pid, self._job.visited)
        if note:
            self._tell(note)
        if why:
            self._stop(why)

    def _stop(self, why: str) -> None:
        if self._kill_at:
            return
        self._detail = why
        self._tell(f"this job is ended: {why}")
        write_all(self._job.log, f"\r\ntgpu: ended: {why}\r\n".encode())
        self._job.hang_up()
        self._kill_at = time.monotonic() + KILL_AFTER_S

    def _tell(self, note: str) -> None:
        for client in self._job.clients:
            client.say(b"n", note.encode())

    def _drain(self, program: Program) -> None:
        """What it wrote last; what it left behind may write for ever, and is not waited for."""
        give_up = time.monotonic() + DRAIN_S
        for outlet in list(program.outlets):
            while outlet in program.outlets and time.monotonic() < give_up:
                ready = select.select([outlet], [], [], 0)[0]
                if not ready:
                    break
                self._copy(program, outlet, select.POLLIN)

    def _end(self) -> None:
        """The job is over: whoever is there gets all that it wrote, and how it ended."""
        self._drain(self._job)
        ended = os.waitid(os.P_PID, self._job.pid, os.WEXITED | os.WNOWAIT)
        status = 0
        if ended is not None:
            code = ended.si_status
            status = code << 8 if ended.si_code == os.CLD_EXITED else code
        for program in (*self._programs[1:], *self._starting.values()):
            program.hang_up()
        for client in self._clients:
            client.say(b"e", STATUS.pack(status))
        give_up = time.monotonic() + FAREWELL_S
        while time.monotonic() < give_up:
            unsent = [client for client in self._clients if client.unsent and not client.gone]
            if not unsent:
                break
            select.select([], [client.connection for client in unsent], [], 0.1)
            for client in unsent:
                client.send()


def start(asked: Order, order: Order) -> tuple[int, Program]:
    """Another program inside the job, and where it reports: why it cannot run, or just the end.

    Directories are only touched by the program itself: they may hang for ever.
    """
    argv = [str(word) for word in asked["argv"]]
    environment = dict(order["environment"])
    if asked.get("term"):
        environment["TERM"] = str(asked["term"])
    own = str(order["workdir"] or "/")
    directories = [str(asked.get("directory") or own)]
    if asked.get("or_its_own"):
        directories.append(own)
    errors, report = os.pipe()
    if asked.get("terminal"):
        pid, terminal = pty.fork()
        if pid == 0:
            become(argv, environment, directories, order["umask"], report)
        program = Program(pid, terminal, {terminal: b"d"}, terminal)
    else:
        ends = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for number, end in enumerate((ends[0][0], ends[1][1], ends[2][1])):
                os.dup2(end, number)
            become(argv, environment, directories, order["umask"], report)
        for end in (ends[0][0], ends[1][1], ends[2][1]):
            os.close(end)
        program = Program(pid, ends[0][1], {ends[1][0]: b"d", ends[2][0]: b"E"}, -1)
    os.close(report)
    return errors, program


def become(
    argv: list[str], environment: dict[str, str], directories: list[str], umask: int, report: int
) -> None:
    """Never returns. The directory is the first of them that is one, or else the last."""
    directory = directories[-1]
    try:
        directory = next(filter(os.path.isdir, directories), directory)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        os.umask(umask)
        os.chdir(directory)
        os.execvpe(argv[0], argv, environment)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be heard of
        reason = getattr(error, "strerror", None) or str(error)
        os.write(report, f"cannot run {argv[:1]} in {directory!r}: {reason}".encode())
    finally:
        os._exit(127)


def write_all(target: int, data: bytes) -> None:
    """A log that cannot be written to does not stop the job."""
    with contextlib.suppress(OSError):
        while data and target >= 0:
            data = data[os.write(target, data) :]
