"""What a forked child does until it executes the job's command.

It prepares itself (streams, session, control groups, limits, user, directory) and waits at its
gate, a socket to the launcher. Then it executes the command, or writes to the gate why it cannot.
This module imports very little and makes few objects: every page that this process or the fork
server touches is copied for every job.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
import socket
import struct

from gpu_scheduler.agent.oom_score import ORDINARY, set_oom_score

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GO = b"g"
LATE = b"l"
"""Sent before GO, and followed by variables that were not known before."""
READY = b"r"
"""Written to the gate by a member of a gang: all is done up to the exec."""
LOG = b"l"
"""Sent with the descriptor of the log to a pre-forked child."""
PYTHON = "{python}"
"""Placeholder in a command line for the first interpreter that the job's user may run."""
LENGTH = struct.Struct("=I")
"""Length prefix of the values that a child reads from its gate."""
NEVER_RAN = 127
WARM_UP_ROUNDS = 20
"""After so many runs Python has specialized a piece of code."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_IGNORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_DEV_NULL = os.open("/dev/null", os.O_RDWR)
_MAX_DESCRIPTORS = 1 << 20
_MAX_MESSAGE = 60_000
_DIRECTORY_OF_ROOT = 0o700
_DIRECTORY_TYPE = 0o040000
_BIND, _PRIVATE = 0x1000 | 0x4000, 0x40000 | 0x4000
"""Flags of mount(): MS_BIND or MS_PRIVATE, each with MS_REC."""


class CannotRun(Exception):
    """The child cannot execute the command; the text says why."""


def ignore_signals() -> None:
    """Install handlers that do nothing, not SIG_IGN: exec removes handlers, so jobs start clean.

    Signals that our parent ignored or blocked are reset: every job would inherit that.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)


class LaunchOrder:
    """What a child is to execute: the fields of a `Launch` that differ from these defaults.

    The environment is in bytes, as the kernel takes it.
    """

    argv: tuple[str, ...] = ()
    environment: dict[bytes, bytes]
    uid: int | None = None
    gid = 0
    user = ""
    umask = 0o022
    workdir = "/"
    stdin = ""
    log_of_user = ""
    log_umask = 0o022
    joins: tuple[str, ...] = ()
    rlimits: tuple[tuple[int, int], ...] = ()
    cpus: tuple[int, ...] = ()
    python: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    root = ""
    stage = ""
    reaching_uid = 0
    says_ready = False

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__ = fields


def run_job(
    gate: int, log: int, fields: dict[str, Any] | None = None, entered: bool = False
) -> None:
    """Carry out an order. `entered`: the child is in the first of its control groups already.

    A child of the fork server reads the order from the gate; one of the launcher has inherited it.
    A pre-forked child first reads only which groups to wait in; the log comes with the rest. Never
    returns: a child must not go on as a second launcher, or as a second fork server.
    """
    try:
        _close_inherited(gate, log)
        if fields is not None:
            set_oom_score(ORDINARY)
        else:
            fields = _read_order(gate)
            if entered:
                fields["joins"] = fields["joins"][1:]
            if "argv" not in fields:
                for path in fields["joins"]:
                    _join(path)
                _receive_log(gate)
                fields = _read_order(gate)
                fields["joins"] = ()
        os.setsid()
        _run_job(LaunchOrder(fields), gate)
    except Exception as error:  # noqa: BLE001 - the launcher must learn of every error
        if not isinstance(error, EOFError):
            reason = str(error) if isinstance(error, CannotRun) else f"cannot run the job: {error}"
            os.write(gate, reason.encode(errors="replace")[:_MAX_MESSAGE])
    finally:
        os._exit(NEVER_RAN)


def warm_up(channel: int) -> None:
    """Do in the fork server what every child does, so that children find all of it warm.

    Else each of them resolves the same functions of the C library and specializes the same code, in
    pages of its own. Closes every descriptor but `channel`.
    """
    user = {"uid": os.geteuid(), "gid": os.getegid()}
    order = marshal.dumps({"argv": ("/",), "environment": {b"PATH": b"/"}, **user}, 2)
    gate, launcher = socket.socketpair()
    for _ in range(WARM_UP_ROUNDS):
        socket.send_fds(launcher, [LOG], [_DEV_NULL])
        launcher.sendall(LENGTH.pack(len(order)) + order + GO)
        _receive_log(gate.fileno())
        try:
            _run_job(LaunchOrder(_read_order(gate.fileno())), gate.fileno())
        except CannotRun:
            continue
    gate.close()
    launcher.close()
    for _ in range(WARM_UP_ROUNDS):
        _close_inherited(channel, -1)
        os.dup2(0, _DEV_NULL, inheritable=False)


def _close_inherited(gate: int, log: int) -> None:
    """Set the standard streams, and close every other descriptor but the gate.

    Above all the gates of others and the channel to the launcher: a child that kept one would hold
    it open after the process at the other end has died.
    """
    os.dup2(_DEV_NULL, 0)
    if log < 0:
        log = _DEV_NULL
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, gate)
    os.closerange(gate + 1, _MAX_DESCRIPTORS)


def _receive_log(gate: int) -> None:
    """Receive the log for the output, if there is one, ahead of the order."""
    side = socket.socket(fileno=gate)
    data, descriptors, _, _ = socket.recv_fds(side, len(LOG), 1)
    side.detach()
    if data != LOG:
        os._exit(NEVER_RAN)
    if descriptors:
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[0], 2)
        os.close(descriptors[0])


def _read_order(gate: int) -> dict[str, Any]:
    """The fields that the launcher has written to the gate; EOFError if it is gone."""
    length = LENGTH.unpack(_read_exactly(gate, LENGTH.size))[0]
    fields: dict[str, Any] = marshal.loads(_read_exactly(gate, length))  # noqa: S302 - our parent
    return fields


def _read_exactly(gate: int, size: int) -> bytes:
    data = os.read(gate, size)
    while len(data) < size:
        part = os.read(gate, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _run_job(order: LaunchOrder, gate: int) -> None:
    """Prepare, wait for GO, and execute the command; CannotRun if that is not possible."""
    _prepare(order)
    program, argv = _find_program(order)
    if order.says_ready:
        os.write(gate, READY)
    command_byte = os.read(gate, 1)
    if command_byte == LATE:
        _add_late_environment(order, gate)
        command_byte = os.read(gate, 1)
    if command_byte != GO:
        os._exit(NEVER_RAN)
    try:
        os.execve(program, argv, order.environment)
    except OSError as error:
        raise CannotRun(_cannot_run(argv[0], error)) from None


def _add_late_environment(order: LaunchOrder, gate: int) -> None:
    """Add the variables that came before GO; the engine of a container reads them as lines."""
    late: dict[bytes, bytes] = _read_order(gate)["environment"]
    if not order.stdin:
        order.environment = {**order.environment, **late}
        return
    values = {os.fsdecode(name): os.fsdecode(value) for name, value in late.items()}
    lines = [line for line in order.stdin.splitlines() if line.partition("=")[0] not in values]
    lines += [f"{name}={value}" for name, value in values.items()]
    os.dup2(_memory_file("".join(f"{line}\n" for line in lines)), 0)


def _prepare(order: LaunchOrder) -> None:
    if order.stdin:
        os.dup2(_memory_file(order.stdin), 0)
    for path in order.joins:
        _join(path)
    if order.cpus and (cpus := os.sched_getaffinity(0) & set(order.cpus)):
        os.sched_setaffinity(0, cpus)
    for kind, amount in order.rlimits:
        _, hard = resource.getrlimit(kind)
        most = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (most, most))
    if order.uid is None:
        _check_access_of_user(order)
    else:
        _change_user(order)
        if order.log_of_user:
            _open_output(order)
    os.umask(order.umask)
    try:
        os.chdir(order.workdir or "/")
    except OSError as error:
        raise CannotRun(
            f"cannot enter the working directory {order.workdir!r}: {_reason(error)}; "
            "it must exist on this node and be open to the job's user"
        ) from None


def _join(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotRun(f"cannot join the control group {path}: {_reason(error)}") from None


def _change_user(order: LaunchOrder) -> None:
    """Change to the job's user. A process of that user already keeps its groups."""
    uid = order.uid
    own = os.geteuid()
    if uid is None or (uid == own and (own != 0 or order.gid == os.getegid())):
        return
    try:
        if order.user:
            os.initgroups(order.user, order.gid)
        else:
            os.setgroups([order.gid])
        os.setgid(order.gid)
        os.setuid(uid)
    except (OSError, OverflowError) as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        raise CannotRun(
            f"cannot run as user {order.user or uid} (uid {uid}, gid {order.gid}): {reason}"
        ) from None


def _check_access_of_user(order: LaunchOrder) -> None:
    """An engine that runs as root must not open what the job's user could not open.

    With `stage` it does not even open the paths again: between the check and the engine the user
    could put a link there. The engine gets what the user has opened, bound in a directory of root.
    """
    opened: list[int] = []
    lower = os.geteuid() == 0 and order.reaching_uid != 0
    groups = os.getgroups()
    if lower:
        os.setgroups([order.gid])
        os.setegid(order.gid)
        os.seteuid(order.reaching_uid)
    try:
        for path in order.reachable:
            if order.stage:
                opened.append(_open_source(path))
            elif not os.access(path, os.R_OK, effective_ids=True):
                raise CannotRun(f"cannot mount {path!r}: the job's user may not read it")
        # Here, not in the launcher: the file system is the user's choice, and may hang.
        if root := order.root:
            if os.path.realpath(root) == "/" or not os.path.isdir(root):
                raise CannotRun(f"no root file system at {root!r}; name a directory that holds one")
            if not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
                raise CannotRun(
                    f"cannot use the root file system {root!r}: the job's user may not read it"
                )
        if order.log_of_user:
            _open_output(order)
    finally:
        if lower:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)
    if order.stage:
        _bind_sources(order.stage, opened)


def _open_source(path: str) -> int:
    """Open the source of a mount as the job's user, also through links of the user."""
    try:
        source = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise CannotRun(f"cannot mount {path!r}: {_reason(error)}") from None
    if not os.access(f"/proc/self/fd/{source}", os.R_OK, effective_ids=True):
        raise CannotRun(f"cannot mount {path!r}: the job's user may not read it")
    return source


def _bind_sources(stage: str, sources: list[int]) -> None:
    """Bind the opened paths into the directory `stage`, which only root can reach."""
    import ctypes  # noqa: PLC0415 - few children need it, and all would pay for it

    mount = ctypes.CDLL(None, use_errno=True).mount
    parent = os.path.dirname(stage)
    problem = ""
    try:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        status = os.lstat(parent)
        if status.st_uid != 0 or status.st_mode & 0o7777 != _DIRECTORY_OF_ROOT:
            raise CannotRun(f"{parent!r} must be a directory of root with mode 700")
        os.mkdir(stage, 0o700)
        for number, source in enumerate(sources):
            place = f"{stage}/{number}"
            if os.stat(source).st_mode & 0o170000 == _DIRECTORY_TYPE:
                os.mkdir(place)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            for origin, flags in ((f"/proc/self/fd/{source}", _BIND), ("none", _PRIVATE)):
                if mount(origin.encode(), place.encode(), None, flags, None):
                    problem = os.strerror(ctypes.get_errno())
                    break
    except OSError as error:
        problem = str(error)
    if problem:
        raise CannotRun(f"cannot bind the mounts of the container: {problem}")


def _memory_file(text: str) -> int:
    """A file without a name, which only this process and its successors can read."""
    file = os.memfd_create("stdin")
    view = memoryview(text.encode(errors="surrogateescape"))
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _open_output(order: LaunchOrder) -> None:
    """Open it with the user's rights, and without waiting for the reader of a pipe."""
    path = order.log_of_user
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    before = os.umask(order.log_umask)
    try:
        output = os.open(path, flags, 0o666)
    except OSError as error:
        raise CannotRun(f"cannot open the output file {path!r}: {_reason(error)}") from None
    finally:
        os.umask(before)
    os.set_blocking(output, True)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _find_program(order: LaunchOrder) -> tuple[str, tuple[str, ...]]:
    """The file to execute and the arguments."""
    argv = order.argv
    if order.python:
        python = next((path for path in order.python if os.access(path, os.X_OK)), "")
        if not python:
            tried = ", ".join(order.python)
            raise CannotRun(f"the job's user may run no Python for the session: tried {tried}")
        argv = tuple(python if part == PYTHON else part for part in argv)
    name = argv[0]
    if "/" in name:
        return name, argv
    problem = errno.ENOENT
    paths = os.fsdecode(order.environment.get(b"PATH", DEFAULT_PATH))
    for directory in paths.split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path, argv
        if os.path.isfile(path):
            problem = errno.EACCES
    raise CannotRun(_cannot_run(name, OSError(problem, "")))


def _cannot_run(name: str, error: OSError) -> str:
    advice = {
        errno.ENOENT: "check the spelling, the PATH of the job, and the first line of a script",
        errno.EACCES: "is it executable for this user (chmod +x)?",
        errno.ENOEXEC: "a script needs a first line such as #!/bin/sh",
        errno.E2BIG: "arguments and environment together are too long",
    }.get(error.errno or 0, "")
    return f"cannot run {name!r}: {_reason(error)}" + (f"; {advice}" if advice else "")


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "no such file"
    return os.strerror(error.errno).lower() if error.errno else str(error)
