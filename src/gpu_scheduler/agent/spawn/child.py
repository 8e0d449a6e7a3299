"""What a forked child does until it is the job.

It makes itself ready (streams, session, control groups, limits, user, directory) and waits at its
gate. Then it executes the command, or says at the gate why it cannot. It imports very little, and
makes few objects: every page that this process or the zygote touches is copied for every job.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
REHEARSALS = 20
"""After so many times Python has learnt what it can about a piece of code."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_DEAF_TO = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_NOTHING = os.open("/dev/null", os.O_RDWR)
_MOST_DESCRIPTORS = 1 << 20
_MOST_WORDS = 60_000


class CannotRun(Exception):
    """The child could not become the job; the text says why."""


def ignore_signals() -> None:
    """Handlers that do nothing, not SIG_IGN: exec takes handlers away, so jobs start clean.

    What whoever started us ignored or held back would else be so in every job, and in all below.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in _DEAF_TO:
        signal.signal(number, lambda *_: None)


class Asked:
    """What a child is to become: the fields of a `Launch`, of which only the unusual are told.

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
    reaching_uid = 0
    says_ready = False

    def __init__(self, told: dict[str, Any]) -> None:
        self.__dict__ = told


def become_asked_job(gate: int, log: int, entered: bool) -> None:
    """Read at the gate what to become. `entered`: this process is in its first group already.

    Or first only which groups to wait in; then the log comes with the rest. Never returns, whatever
    happens: a child must not go on as a second launcher, or as a second zygote.
    """
    try:
        _let_go(gate, log)
        told = _asked(gate)
        if entered:
            told["joins"] = told["joins"][1:]
        if "argv" not in told:
            for path in told["joins"]:
                _join(path)
            _log_at(gate)
            told = _asked(gate)
            told["joins"] = ()
        os.setsid()
        _become_job(Asked(told), gate)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        _say_why_not(gate, error)
    finally:
        os._exit(NEVER_RAN)


def become_job(told: dict[str, Any], gate: int, log: int) -> None:
    """The same for a child that was forked by the launcher itself, and so knows what to become."""
    try:
        _let_go(gate, log)
        os.setsid()
        _become_job(Asked(told), gate)
    except Exception as error:  # noqa: BLE001 - as above
        _say_why_not(gate, error)
    finally:
        os._exit(NEVER_RAN)


def rehearse(channel: int) -> None:
    """Do in the zygote what every child does, so that children find all of it warm.

    Else each of them looks up the same functions of the C library and learns the same about this
    code, and all of that in pages of its own. Of what is open only `channel` stays so.
    """
    user = {"uid": os.geteuid(), "gid": os.getegid()}
    told = marshal.dumps({"argv": ("/",), "environment": {b"PATH": b"/"}, **user}, 2)
    gate, launcher = socket.socketpair()
    for _ in range(REHEARSALS):
        socket.send_fds(launcher, [LOG], [_NOTHING])
        launcher.sendall(LENGTH.pack(len(told)) + told + GO)
        _log_at(gate.fileno())
        try:
            _become_job(Asked(_asked(gate.fileno())), gate.fileno())
        except CannotRun:
            continue
    gate.close()
    launcher.close()
    for _ in range(REHEARSALS):
        _let_go(channel, -1)
        os.dup2(0, _NOTHING, inheritable=False)


def _let_go(gate: int, log: int) -> None:
    """Keep the standard streams and the gate, and let go of all else.

    Above all of the gates of others, and of the way to the launcher: a child that kept one would
    hold it open after the death of whoever is at the other end.
    """
    os.dup2(_NOTHING, 0)
    if log < 0:
        log = _NOTHING
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, gate)
    os.closerange(gate + 1, _MOST_DESCRIPTORS)


def _log_at(gate: int) -> None:
    """The descriptor that comes ahead of all else, if one does, is for the output."""
    side = socket.socket(fileno=gate)
    said, given, _, _ = socket.recv_fds(side, len(LOG), 1)
    side.detach()
    if said != LOG:
        os._exit(NEVER_RAN)
    if given:
        os.dup2(given[0], 1)
        os.dup2(given[0], 2)
        os.close(given[0])


def _asked(gate: int) -> dict[str, Any]:
    """What the launcher has written at a gate; EOFError if it is gone."""
    length = LENGTH.unpack(_exactly(gate, LENGTH.size))[0]
    told: dict[str, Any] = marshal.loads(_exactly(gate, length))  # noqa: S302 - from our parent
    return told


def _exactly(gate: int, size: int) -> bytes:
    data = os.read(gate, size)
    while len(data) < size:
        part = os.read(gate, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _become_job(asked: Asked, gate: int) -> None:
    """Get ready, wait for the word to go, and execute; CannotRun if that cannot be."""
    _prepare(asked)
    program, argv = _program(asked)
    if asked.says_ready:
        os.write(gate, READY)
    word = os.read(gate, 1)
    if word == LATE:
        _take_late(asked, gate)
        word = os.read(gate, 1)
    if word != GO:
        os._exit(NEVER_RAN)
    try:
        os.execve(program, argv, asked.environment)
    except OSError as error:
        raise CannotRun(_cannot_run(argv[0], error)) from None


def _say_why_not(gate: int, error: Exception) -> None:
    if isinstance(error, EOFError):
        return
    said = str(error) if isinstance(error, CannotRun) else f"cannot run the job: {error}"
    os.write(gate, said.encode(errors="replace")[:_MOST_WORDS])


def _take_late(asked: Asked, gate: int) -> None:
    """Variables that came with the word to go; a container's engine reads all as lines."""
    late: dict[bytes, bytes] = _asked(gate)["environment"]
    if not asked.stdin:
        asked.environment = {**asked.environment, **late}
        return
    said = {os.fsdecode(name): os.fsdecode(value) for name, value in late.items()}
    lines = [line for line in asked.stdin.splitlines() if line.partition("=")[0] not in said]
    lines += [f"{name}={value}" for name, value in said.items()]
    os.dup2(_holding("".join(f"{line}\n" for line in lines)), 0)


def _prepare(asked: Asked) -> None:
    if asked.stdin:
        os.dup2(_holding(asked.stdin), 0)
    for path in asked.joins:
        _join(path)
    if asked.cpus and (cpus := os.sched_getaffinity(0) & set(asked.cpus)):
        os.sched_setaffinity(0, cpus)
    for kind, amount in asked.rlimits:
        _, hard = resource.getrlimit(kind)
        most = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (most, most))
    if asked.uid is None:
        _reach_as_user(asked)
    else:
        _become(asked)
        if asked.log_of_user:
            _open_output(asked)
    os.umask(asked.umask)
    try:
        os.chdir(asked.workdir or "/")
    except OSError as error:
        raise CannotRun(
            f"cannot enter the working directory {asked.workdir!r}: {_reason(error)}; "
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


def _become(asked: Asked) -> None:
    """Become the job's user, for good. Who is that user already keeps its groups as they are."""
    uid = asked.uid
    own = os.geteuid()
    if uid is None or (uid == own and (own != 0 or asked.gid == os.getegid())):
        return
    try:
        if asked.user:
            os.initgroups(asked.user, asked.gid)
        else:
            os.setgroups([asked.gid])
        os.setgid(asked.gid)
        os.setuid(uid)
    except (OSError, OverflowError) as error:
        reason = _reason(error) if isinstance(error, OSError) else str(error)
        raise CannotRun(
            f"cannot run as user {asked.user or uid} (uid {uid}, gid {asked.gid}): {reason}"
        ) from None


def _reach_as_user(asked: Asked) -> None:
    """What a container's user could not open, an engine that is root must not open either."""
    lower = os.geteuid() == 0 and asked.reaching_uid != 0
    groups = os.getgroups()
    if lower:
        os.setgroups([asked.gid])
        os.setegid(asked.gid)
        os.seteuid(asked.reaching_uid)
    try:
        for path in asked.reachable:
            if not os.access(path, os.R_OK, effective_ids=True):
                raise CannotRun(f"cannot mount {path!r}: the job's user may not read it")
        if asked.root:
            _check_root(asked.root)
        if asked.log_of_user:
            _open_output(asked)
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


def _holding(text: str) -> int:
    """A file without a name, which only this process and those after it can read."""
    file = os.memfd_create("stdin")
    view = memoryview(text.encode(errors="surrogateescape"))
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _open_output(asked: Asked) -> None:
    """As the user, so with the user's rights. A pipe that nobody reads keeps nobody waiting."""
    path = asked.log_of_user
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    before = os.umask(asked.log_umask)
    try:
        output = os.open(path, flags, 0o666)
    except OSError as error:
        raise CannotRun(f"cannot open the output file {path!r}: {_reason(error)}") from None
    finally:
        os.umask(before)
    os.set_blocking(output, True)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _program(asked: Asked) -> tuple[str, tuple[str, ...]]:
    """The file to execute and the arguments."""
    argv = asked.argv
    if asked.python:
        found = _first_usable(asked.python)
        argv = tuple(found if part == PYTHON else part for part in argv)
    name = argv[0]
    if "/" in name:
        return name, argv
    problem = errno.ENOENT
    paths = os.fsdecode(asked.environment.get(b"PATH", DEFAULT_PATH))
    for directory in paths.split(":"):
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
