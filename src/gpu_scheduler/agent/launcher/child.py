"""What a forked child does until it is the job.

It makes itself ready (streams, session, control groups, limits, user, directory) and waits at its
gate. Then it executes the command, or says at the gate why it cannot. It imports very little: the
pages that this process and the zygote touch are copied for every job.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
import socket
import struct
from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpu_scheduler.agent.launcher.spawn import Launch

GO = b"g"
LATE = b"l"
"""Said at the gate before the word to go, and behind it variables that were not known before."""
READY = b"r"
"""Said at the gate by members of a gang: all is done up to the command itself."""
LOG = b"l"
"""Comes with the log for a child that has waited for a job."""
PYTHON = "{python}"
"""Stands in a command line for the first interpreter that the job's user may run."""
LENGTH = struct.Struct("=I")
"""Stands before the values that a child reads at its gate."""
NEVER_RAN = 127
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_DEAF_TO = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_NOTHING = os.open("/dev/null", os.O_RDWR)
_MOST_DESCRIPTORS = 1 << 20
_MOST_WORDS = 60_000


class CannotRun(Exception):
    """The child could not become the job; the text says why."""


def ignore_signals() -> None:
    """Handlers that do nothing, not SIG_IGN: exec takes handlers away, so jobs start clean."""
    for number in _DEAF_TO:
        signal.signal(number, lambda *_: None)


def become_asked_job(gate: int, log: int, entered: bool) -> None:
    """Read at the gate what to become. `entered`: this process is in its first group already.

    Or first only which groups to wait in; then the log comes with the rest.
    """
    try:
        values = _asked(gate)
        joins = values["joins"][entered:]
        if values.keys() == {"joins"}:
            for path in joins:
                _join(path)
            joins = ()
            log = _log_at(gate)
            values = _asked(gate)
        launch = SimpleNamespace(**values)
        launch.log = log
        launch.joins = joins
    except Exception as error:  # noqa: BLE001 - as below
        os.write(gate, f"cannot read what to run: {error}".encode(errors="replace")[:_MOST_WORDS])
        os._exit(NEVER_RAN)
    become_job(launch, gate)  # type: ignore[arg-type]


def _log_at(gate: int) -> int:
    """The descriptor that comes ahead of all else, if one does; -1 if not."""
    side = socket.socket(fileno=gate)
    said, given, _, _ = socket.recv_fds(side, len(LOG), 1)
    side.detach()
    if said != LOG:
        os._exit(NEVER_RAN)
    return given[0] if given else -1


def _asked(gate: int) -> dict[str, Any]:
    length = LENGTH.unpack(_exactly(gate, LENGTH.size))[0]
    values: dict[str, Any] = marshal.loads(_exactly(gate, length))  # noqa: S302 - from our parent
    return values


def _exactly(gate: int, size: int) -> bytes:
    data = os.read(gate, size)
    while len(data) < size:
        part = os.read(gate, size - len(data))
        if not part:
            os._exit(NEVER_RAN)
        data += part
    return data


def become_job(launch: Launch, gate: int) -> None:
    """Never returns, whatever happens: a child must not go on as a second launcher."""
    try:
        _redirect(launch, gate)
        _prepare(launch)
        program, argv = _program(launch)
        if launch.says_ready:
            os.write(gate, READY)
        word = os.read(gate, 1)
        if word == LATE:
            _take_late(launch, gate)
            word = os.read(gate, 1)
        if word != GO:
            os._exit(NEVER_RAN)
        try:
            os.execve(program, argv, launch.environment)
        except OSError as error:
            raise CannotRun(_cannot_run(argv[0], error)) from None
    except CannotRun as refused:
        os.write(gate, str(refused).encode(errors="replace")[:_MOST_WORDS])
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        os.write(gate, f"cannot run the job: {error}".encode(errors="replace")[:_MOST_WORDS])
    finally:
        os._exit(NEVER_RAN)


def _take_late(launch: Launch, gate: int) -> None:
    """Variables that came with the word to go; a container's engine reads all as lines."""
    late = {name: str(value) for name, value in _asked(gate).items()}
    if not launch.stdin:
        launch.environment = {**launch.environment, **late}
        return
    lines = [line for line in launch.stdin.splitlines() if line.partition("=")[0] not in late]
    lines += [f"{name}={value}" for name, value in late.items()]
    os.dup2(_holding("".join(f"{line}\n" for line in lines)), 0)


def _prepare(launch: Launch) -> None:
    os.setsid()
    for path in launch.joins:
        _join(path)
    if launch.cpus and (cpus := os.sched_getaffinity(0) & set(launch.cpus)):
        os.sched_setaffinity(0, cpus)
    for kind, amount in launch.rlimits:
        _, hard = resource.getrlimit(kind)
        most = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (most, most))
    if launch.uid is None:
        _reach_as_user(launch)
    else:
        _become(launch)
        if launch.log_of_user:
            _open_output(launch)
    os.umask(launch.umask)
    try:
        os.chdir(launch.workdir or "/")
    except OSError as error:
        raise CannotRun(
            f"cannot enter the working directory {launch.workdir!r}: {_reason(error)}; "
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


def _become(launch: Launch) -> None:
    """Become the job's user, for good. Who is that user already keeps its groups as they are."""
    uid = launch.uid
    own = os.geteuid()
    if uid is None or (uid == own and (own != 0 or launch.gid == os.getegid())):
        return
    try:
        if launch.user:
            os.initgroups(launch.user, launch.gid)
        else:
            os.setgroups([launch.gid])
        os.setgid(launch.gid)
        os.setuid(uid)
    except (OSError, OverflowError) as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        raise CannotRun(
            f"cannot run as user {launch.user or uid} (uid {uid}, gid {launch.gid}): {reason}"
        ) from None


def _reach_as_user(launch: Launch) -> None:
    """What a container's user could not open, an engine that is root must not open either."""
    lower = os.geteuid() == 0 and launch.reaching_uid != 0
    groups = os.getgroups()
    if lower:
        os.setgroups([launch.gid])
        os.setegid(launch.gid)
        os.seteuid(launch.reaching_uid)
    try:
        for path in launch.reachable:
            if not os.access(path, os.R_OK, effective_ids=True):
                raise CannotRun(f"cannot mount {path!r}: the job's user may not read it")
        if launch.root:
            _check_root(launch.root)
        if launch.log_of_user:
            _open_output(launch)
    finally:
        if lower:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)


def _check_root(path: str) -> None:
    """Not in the launcher: what lies there is the user's, and may take its time."""
    if os.path.realpath(path) == "/" or not os.path.isdir(path):
        raise CannotRun(f"no root file system at {path!r}; name a directory that holds one")
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        raise CannotRun(f"cannot use the root file system {path!r}: the job's user may not read it")


def _redirect(launch: Launch, gate: int) -> None:
    """Keep the standard streams and the gate, and let go of all else.

    Above all of the gates of others: a child that kept one would hold it open after our death.
    """
    log = launch.log if launch.log >= 0 else _NOTHING
    os.dup2(_holding(launch.stdin) if launch.stdin else _NOTHING, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, gate)
    os.closerange(gate + 1, _MOST_DESCRIPTORS)


def _holding(text: str) -> int:
    """A file without a name, which only this process and those after it can read."""
    file = os.memfd_create("stdin")
    view = memoryview(text.encode(errors="surrogateescape"))
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _open_output(launch: Launch) -> None:
    """As the user, so with the user's rights. A pipe that nobody reads keeps nobody waiting."""
    path = launch.log_of_user
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    before = os.umask(launch.log_umask)
    try:
        output = os.open(path, flags, 0o666)
    except OSError as error:
        raise CannotRun(f"cannot open the output file {path!r}: {_reason(error)}") from None
    finally:
        os.umask(before)
    os.set_blocking(output, True)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _program(launch: Launch) -> tuple[str, tuple[str, ...]]:
    """The file to execute and the arguments."""
    argv = launch.argv
    if launch.python:
        found = _first_usable(launch.python)
        argv = tuple(found if part == PYTHON else part for part in argv)
    name = argv[0]
    if "/" in name:
        return name, argv
    problem = errno.ENOENT
    for directory in launch.environment.get("PATH", DEFAULT_PATH).split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path, argv
        if os.path.isfile(path):
            problem = errno.EACCES
    raise CannotRun(_cannot_run(name, OSError(problem, "")))


def _first_usable(pythons: tuple[str, ...]) -> str:
    for path in pythons:
        if os.access(path, os.X_OK):
            return path
    raise CannotRun(f"the job's user may run no Python for the session: tried {', '.join(pythons)}")


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
