"""The shim: runs inside a session, between its terminal and the job.

It connects to the launcher's gate and waits for the order, so that the job begins only once its
record is on disk. The job gets a terminal of its own; its output goes to the session and, through a
descriptor from the launcher, to the log, or to the file that the user named. The end is written to
`end.json` by fsync and rename; signals for the job never reach this process. In tmux and screen it
copies between two terminals; with the runner `terminal`, `terminal_host.py` beside it serves the
terminal at a socket, with `terminal_use.py`.

Copied as text into the job's scratch directory. Runs with any Python 3.8 or newer that the job's
user can read, and imports nothing of this package.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import tty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

UNFINISHED = "end.json.new"
END_BYTES = 4096
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE)


def main() -> int:
    """Read the order, run the job, relay its terminal, write the end."""
    gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    gate.connect(sys.argv[1])
    order, log = receive(gate)
    if order is None:
        return 1
    if order["output"]:
        log = open_output(gate, order)
    for number in IGNORED:
        signal.signal(number, lambda *_: None)
    here = os.path.dirname(os.path.abspath(__file__))
    reserve_space(here)
    errors, report = os.pipe()
    job, terminal = pty.fork()
    if job == 0:
        exec_job(order, report)
    os.close(report)
    problem = os.read(errors, 60000).decode(errors="replace")
    os.close(errors)
    if problem:
        os.waitpid(job, 0)
        send(gate, {"error": problem})
        return 1
    send(gate, {"began": job})
    signal.signal(signal.SIGHUP, lambda *_: hang_up(job))
    detail = ""
    if order.get("terminal"):
        use = load(here, "terminal_use").Use(order["terminal"])
        detail = load(here, "terminal_host").serve(job, terminal, log, order, here, use)
    else:
        relay(job, terminal, log)
    _, status = os.waitpid(job, 0)
    write_end(here, job, status, detail)
    send(gate, {"end": status})
    return 0


def load(directory: str, name: str) -> Any:
    """Import a file beside this one; an isolated Python does not search this directory."""
    # No bytecode: the directory must be empty again when the job is forgotten.
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(name, os.path.join(directory, name + ".py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def receive(gate: socket.socket) -> tuple[Order | None, int]:
    """The order and the log's descriptor; None if the launcher has died."""
    data, log = b"", -1
    while not data.endswith(b"\n"):
        part, extra, _, _ = gate.recvmsg(65536, socket.CMSG_SPACE(4))
        for level, kind, fds in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                log = array.array("i", fds[:4])[0]
        if not part:
            return None, log
        data += part
    if log > 2:
        os.set_inheritable(log, False)
    return json.loads(data), log


def open_output(gate: socket.socket, order: Order) -> int:
    """Open the file that the user named in place of a log, with the rights of the user."""
    os.umask(order["umask"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    try:
        output = os.open(order["output"], flags, 0o666)
    except OSError as error:
        path, reason = order["output"], str(error.strerror).lower()
        send(gate, {"error": f"cannot open the output file {path!r}: {reason}"})
        sys.exit(1)
    os.set_blocking(output, True)
    return output


def exec_job(order: Order, report: int) -> None:
    """Execute the command in the child. Never returns."""
    doing = f"enter the working directory {order['workdir']!r}"
    try:
        environment = dict(order["environment"])
        if order.get("terminal"):
            environment.setdefault("TERM", "xterm-256color")
        else:
            environment["TERM"] = os.environ.get("TERM", "dumb")
        os.umask(order["umask"])
        os.chdir(order["workdir"] or "/")
        doing = f"run {order['argv'][0]!r}"
        for number in range(1, signal.NSIG):
            # Python ignores some signals, and some cannot be set.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        resize(0, order)
        os.execvpe(order["argv"][0], order["argv"], environment)
    except Exception as error:  # noqa: BLE001 - the launcher must learn of every error
        reason = getattr(error, "strerror", None) or str(error)
        os.write(report, f"cannot {doing}: {reason.lower()}".encode())
    finally:
        os._exit(127)


def resize(terminal: int, order: Order) -> None:
    """Set the terminal to the size that the order has, if any."""
    size = order.get("terminal")
    if size:
        packed = struct.pack("HHHH", size["rows"], size["columns"], 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)


def relay(job: int, terminal: int, log: int) -> None:
    """Copy between the session and the job until the job has ended."""
    before = make_raw()
    copy_size(terminal)
    signal.signal(signal.SIGWINCH, lambda *_: copy_size(terminal))
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sources = [terminal, ended, 0]
    while not has_ended(job):
        ready, _, _ = select.select(sources, [], [], 1.0)
        if ended in ready:
            os.read(ended, 4096)
        if terminal in ready and not copy(terminal, (1, log)):
            sources.remove(terminal)
        if 0 in ready and not copy(0, (terminal,)):
            sources.remove(0)
    while terminal in sources and select.select([terminal], [], [], 0)[0]:
        if not copy(terminal, (1, log)):
            break
    signal.set_wakeup_fd(-1)
    if before is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, before)


def make_raw() -> list[Any] | None:
    """Set the session's terminal to raw mode: the job's terminal interprets the keys."""
    try:
        before = termios.tcgetattr(0)
        tty.setraw(0)
    except termios.error:
        return None
    return before


def copy(source: int, targets: tuple[int, ...]) -> bool:
    """Copy what can be read; False at the end."""
    data = read(source)
    for target in targets:
        write(target, data)
    return bool(data)


def has_ended(job: int) -> bool:
    """Whether the job has ended; it stays a zombie, so that its status can be read later."""
    return os.waitid(os.P_PID, job, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def copy_size(terminal: int) -> None:
    """Give the job's terminal the size of the session's."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def hang_up(job: int) -> None:
    """The session was killed: hang up the job, as any terminal does."""
    with contextlib.suppress(OSError):
        os.killpg(job, signal.SIGHUP)
        os.killpg(job, signal.SIGCONT)


def reserve_space(directory: str) -> None:
    """Reserve disk space for the end now: the job may fill the disk."""
    with contextlib.suppress(OSError):
        file = os.open(os.path.join(directory, UNFINISHED), os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.write(file, b" " * END_BYTES)
        finally:
            os.close(file)


def write_end(directory: str, job: int, status: int, detail: str = "") -> None:
    """Write it durably, for a launcher that may not be running at this moment."""
    path = os.path.join(directory, UNFINISHED)
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    end = os.write(file, json.dumps({"pid": job, "status": status, "detail": detail}).encode())
    os.ftruncate(file, end)
    os.fsync(file)
    os.close(file)
    os.rename(path, os.path.join(directory, "end.json"))


def send(gate: socket.socket, message: dict[str, object]) -> None:
    """Send a line to the launcher, which may have died."""
    with contextlib.suppress(OSError):
        gate.sendall(json.dumps(message).encode() + b"\n")


def read(source: int) -> bytes:
    """Read; a terminal whose other side has closed gives b""."""
    try:
        return os.read(source, 65536)
    except OSError:
        return b""


def write(target: int, data: bytes) -> None:
    """Write; a target that is gone does not stop the others."""
    with contextlib.suppress(OSError):
        while data and target >= 0:
            data = data[os.write(target, data) :]


if __name__ == "__main__":
    sys.exit(main())
